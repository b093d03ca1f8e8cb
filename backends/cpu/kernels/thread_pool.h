// Threads that wait for loops to share. Workers spin for a while after each loop, then sleep.
#pragma once

#include <cstdint>
#include <memory>

namespace sift::cpu {

class ThreadPool {
 public:
  // `threads` counts the calling one; 0 takes usable_cpus() of processors.h.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(i) once for each i in [0, count), and returns when all calls have. Neighbouring indices go to the same
  // thread as far as the work is even. Called while another loop runs, or from within one, it does the work by itself.
  // An exception of one call is thrown here after the others have ended.
  template <typename Body>
  void parallel_for(std::int64_t count, const Body& body) {
    run(count, [](const void* context, std::int64_t index) { (*static_cast<const Body*>(context))(index); }, &body);
  }

 private:
  using Call = void (*)(const void* context, std::int64_t index);
  void run(std::int64_t count, Call call, const void* context);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sift::cpu
