#include "base/turns.h"

#include <system_error>

namespace sift::cpu {
namespace {

// Most requests of one image or text are shorter.
constexpr std::chrono::milliseconds kLong{50};

}  // namespace

Turns::~Turns() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& server : servers_) server.join();
}

void Turns::Turn::pass_if_due() {
  if (Clock::now() - begin_ < kLong) return;
  is_held_ = false;
  const std::lock_guard lock(turns_.mutex_);
  --turns_.running_;
  turns_.wake_server();
}

// Called with the lock by a thread that has ended a turn and will not run the next request itself.
void Turns::wake_server() {
  if (queue_.empty()) return;
  if (idle_servers_ == 0) {
    try {
      servers_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
      // The system gives no more threads: one that is there comes when it is done.
    }
  }
  changed_.notify_one();
}

void Turns::run(Call call, const void* request) {
  Waiting own{.call = call, .request = request};
  bool waits = false;
  {
    const std::lock_guard lock(mutex_);
    waits = running_ >= most_ || !queue_.empty();
    if (waits && servers_.empty()) {
      try {
        servers_.emplace_back([this] { serve(); });
      } catch (const std::system_error&) {
        waits = false;  // beside the others, then
      }
    }
    if (waits) {
      queue_.push_back(&own);
      waiting_.fetch_add(1, std::memory_order_relaxed);
    } else {
      ++running_;
    }
  }
  if (waits) {
    own.is_done.wait(0, std::memory_order_acquire);
    // The server says so with the lock, and still has it while it wakes this thread.
    const std::lock_guard lock(mutex_);
  } else {
    Turn turn(*this);
    try {
      call(request, turn);
    } catch (...) {
      own.failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    if (turn.is_held_) {
      --running_;
      wake_server();
    }
  }
  if (own.failure) std::rethrow_exception(own.failure);
}

void Turns::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_servers_;
    changed_.wait(lock, [&] { return is_stopping_ || (running_ < most_ && !queue_.empty()); });
    --idle_servers_;
    if (is_stopping_) return;
    Waiting* const next = queue_.front();
    queue_.pop_front();
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    ++running_;
    lock.unlock();
    Turn turn(*this);
    try {
      next->call(next->request, turn);
    } catch (...) {
      next->failure = std::current_exception();
    }
    lock.lock();
    if (turn.is_held_) --running_;
    next->is_done.store(1, std::memory_order_release);
    next->is_done.notify_one();
  }
}

}  // namespace sift::cpu
