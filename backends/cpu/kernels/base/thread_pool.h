// Threads that wait for loops to share. Workers spin for a while after each loop, then sleep.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fork_safe_mutex.h"

namespace sift::cpu {

class ThreadPool {
 public:
  // `threads`, at least one, counts the calling one. Throws std::invalid_argument.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(i) once for each i in [0, count), and returns when all calls have. Neighbouring indices go to the same
  // thread as far as the work is even. Several threads may call it at once: workers go from one loop to the next, and a
  // caller whose loop no worker has time for does the work by itself. In a forked child, the first loop starts threads.
  // An exception of one call is thrown here after the others have ended.
  template <typename Body>
  void parallel_for(std::int64_t count, const Body& body) {
    run(count, [](const void* context, std::int64_t index) { (*static_cast<const Body*>(context))(index); }, &body);
  }

 private:
  using Call = void (*)(const void* context, std::int64_t index);
  void run(std::int64_t count, Call call, const void* context);

  struct Loop;
  struct State;
  State* started();

  std::atomic<State*> state_;
  ForkSafeMutex starting_;
};

}  // namespace sift::cpu
