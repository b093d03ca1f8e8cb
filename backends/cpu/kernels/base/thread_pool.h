// Threads that share loops. Workers spin for a while after each loop, then sleep.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fork_safe_mutex.h"
#include "base/turns.h"

namespace sift::cpu {

class ThreadPool {
 public:
  // `threads` includes the calling thread. Throws std::invalid_argument if it is below one.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls request(turn) when fewer requests run than there are processors, which they share. Loops of requests that run
  // at once have fewer workers, or none.
  // Of a pool of one thread, whose callers each bring their own, all run, and the turn is null.
  template <typename Request>
  void in_turn(const Request& request) {
    if (threads() == 1) return request(nullptr);
    turns().run([&](Turns::Turn& turn) { request(&turn); });
  }

  // Calls body(i) once for each i in [0, count), and returns when all calls have returned. If the work is even,
  // neighbouring indices run on the same thread. Several threads may call it at once: workers go from one loop to the
  // next, and a caller whose loop has no worker does the work itself. In a forked child, the first loop starts threads.
  // If a call throws, the exception is rethrown here after the other calls have ended.
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
  Turns& turns();

  std::atomic<State*> state_;
  ForkSafeMutex starting_;
};

}  // namespace sift::cpu
