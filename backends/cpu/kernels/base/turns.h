// Runs requests in the order in which they came, and limits how many run at once.
//
// More requests than processors do not finish sooner: each evicts from the caches what the others need, and the system
// lets all of them run a little, so that some take twice as long as others. Requests that take long give up their turn,
// lest short ones wait for them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace sift::cpu {

class Turns {
 public:
  // Of one request.
  class Turn {
   public:
    // Called now and then. A request that has run for long lets the next one begin, and goes on beside it.
    void pass_if_long() {
      if (is_held_ && turns_.waiting_.load(std::memory_order_relaxed) > 0) pass_if_due();
    }

    ~Turn() { turns_.begun_.fetch_sub(1, std::memory_order_relaxed); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    friend class Turns;
    using Clock = std::chrono::steady_clock;

    explicit Turn(Turns& turns) : turns_(turns), begin_(Clock::now()) {
      turns_.begun_.fetch_add(1, std::memory_order_relaxed);
    }
    void pass_if_due();

    Turns& turns_;
    const Clock::time_point begin_;
    bool is_held_ = true;
  };

  // `most`: requests at once, at least 1, but for those that have given up their turn.
  explicit Turns(int most) : most_(most) {}
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // Calls request(turn) in its turn, and returns when it has: on this thread, or, if others came before it, on one that
  // goes from request to request, so that processors do not wait for threads that wake up. Rethrows what it throws.
  template <typename Request>
  void run(const Request& request) {
    run([](const void* own, Turn& turn) { (*static_cast<const Request*>(own))(turn); }, &request);
  }

  // Requests that have begun and not ended, those that have given up their turn included.
  int begun() const { return begun_.load(std::memory_order_relaxed); }

 private:
  using Call = void (*)(const void* request, Turn& turn);
  struct Waiting {
    Call call;
    const void* request;
    std::exception_ptr failure;
    // Of 32 bits, which the system waits for as they are: waits for other types share a counter, and all callers would
    // wake up with each that is done.
    std::atomic<std::uint32_t> is_done{0};
  };

  void run(Call call, const void* request);
  void wake_server();
  void serve();

  const int most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int running_ = 0;  // that have not given up their turn
  bool is_stopping_ = false;
  std::deque<Waiting*> queue_;
  std::atomic<int> waiting_{0};  // in the queue
  std::atomic<int> begun_{0};
  std::vector<std::thread> servers_;
  int idle_servers_ = 0;
};

}  // namespace sift::cpu
