#include "thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "processors.h"

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif
namespace sift::cpu {
namespace {

// Long enough to bridge the gap between two operators of a model, short enough not to burn a core that others share.
constexpr std::chrono::microseconds kSpin{100};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// A forked child has the pool's memory but not its threads.
std::int64_t process_id() {
#if defined(__unix__) || defined(__APPLE__)
  return getpid();
#else
  return 0;
#endif
}

constexpr std::uint32_t kOpen = 1U << 31;

// Own cache lines: each thread counts up its own range, and only thieves touch another's.
struct alignas(64) Range {
  std::atomic<std::int64_t> next{0};
  std::int64_t end = 0;
};

}  // namespace

struct ThreadPool::State {
  explicit State(int threads)
      : ranges(static_cast<std::size_t>(threads)),
        owner(process_id()),
        spreads(threads <= usable_cpus() && current_processor() >= 0) {}

  std::vector<Range> ranges;
  std::int64_t owner;
  bool spreads;  // there is a processor for each thread
  std::mutex busy;

  alignas(64) std::atomic<std::uint32_t> generation{0};  // counts loops; workers wait for it to change
  // Whether a loop takes in workers (kOpen), and how many are at work in it. Who comes too late is not waited for: a
  // worker that the system does not run, because others need the processor, must not hold up what the rest have done.
  alignas(64) std::atomic<std::uint32_t> gate{0};
  std::atomic<bool> stopping{false};
  int callers_processor = -1;
  Call call = nullptr;
  const void* context = nullptr;
  std::mutex failure_mutex;
  std::exception_ptr failure;

  std::vector<std::thread> workers;

  void work(std::size_t self);
  void wait_for_loops(std::size_t self);
  bool enter();
  void leave();
};

namespace {

// True once `done` holds; false if it did not within the spin time.
template <typename Done>
bool spin_until(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

}  // namespace

// The own range first, then what is left of the others'.
void ThreadPool::State::work(std::size_t self) {
  for (std::size_t step = 0; step < ranges.size(); ++step) {
    Range& range = ranges[(self + step) % ranges.size()];
    for (;;) {
      const std::int64_t index = range.next.fetch_add(1, std::memory_order_relaxed);
      if (index >= range.end) break;
      try {
        call(context, index);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
      }
    }
  }
}

void ThreadPool::State::wait_for_loops(std::size_t self) {
  std::uint32_t seen = 0;
  for (;;) {
    const auto changed = [&] { return generation.load(std::memory_order_acquire) != seen; };
    if (!spin_until(changed)) generation.wait(seen, std::memory_order_acquire);
    if (!changed()) continue;
    seen = generation.load(std::memory_order_acquire);
    if (stopping.load(std::memory_order_relaxed)) return;
    // The loop may be over by now, and another one open: that one is as good.
    if (!enter()) continue;
    // Some systems wake a thread on the processor of the one that wakes it, and spread the two milliseconds later.
    if (spreads && current_processor() == callers_processor) leave_processor(callers_processor);
    work(self);
    leave();
  }
}

bool ThreadPool::State::enter() {
  std::uint32_t seen = gate.load(std::memory_order_acquire);
  while ((seen & kOpen) != 0) {
    if (gate.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) return true;
  }
  return false;
}

void ThreadPool::State::leave() {
  if (gate.fetch_sub(1, std::memory_order_acq_rel) == 1) gate.notify_one();
}

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>(threads > 0 ? threads : usable_cpus())) {
  const std::size_t count = state_->ranges.size();
  state_->workers.reserve(count - 1);
  try {
    for (std::size_t worker = 1; worker < count; ++worker) {
      state_->workers.emplace_back([state = state_.get(), worker] { state->wait_for_loops(worker); });
    }
  } catch (const std::exception&) {
    // The system gives no more threads: those there are share the work.
  }
}

ThreadPool::~ThreadPool() {
  if (process_id() != state_->owner) {
    for (std::thread& worker : state_->workers) worker.detach();
    return;
  }
  state_->stopping.store(true, std::memory_order_relaxed);
  state_->generation.fetch_add(1, std::memory_order_release);
  state_->generation.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(std::int64_t count, Call call, const void* context) {
  State& state = *state_;
  std::unique_lock lock(state.busy, std::defer_lock);
  const bool alone = count <= 1 || state.workers.empty() || process_id() != state.owner || !lock.try_lock();
  if (alone) {
    for (std::int64_t index = 0; index < count; ++index) call(context, index);
    return;
  }
  const auto parts = static_cast<std::int64_t>(state.workers.size()) + 1;
  for (std::int64_t part = 0; part < static_cast<std::int64_t>(state.ranges.size()); ++part) {
    Range& range = state.ranges[static_cast<std::size_t>(part)];
    range.end = part < parts ? count * (part + 1) / parts : 0;
    range.next.store(part < parts ? count * part / parts : 0, std::memory_order_relaxed);
  }
  state.callers_processor = current_processor();
  state.call = call;
  state.context = context;
  state.failure = nullptr;
  state.gate.store(kOpen, std::memory_order_release);
  state.generation.fetch_add(1, std::memory_order_release);
  state.generation.notify_all();
  state.work(0);
  state.gate.fetch_and(~kOpen, std::memory_order_acq_rel);
  const auto all_left = [&] { return state.gate.load(std::memory_order_acquire) == 0; };
  if (!spin_until(all_left)) {
    for (std::uint32_t inside = state.gate.load(std::memory_order_acquire); inside != 0;
         inside = state.gate.load(std::memory_order_acquire)) {
      state.gate.wait(inside, std::memory_order_acquire);
    }
  }
  if (state.failure) {
    const std::exception_ptr failure = std::exchange(state.failure, nullptr);
    lock.unlock();
    std::rethrow_exception(failure);
  }
}

}  // namespace sift::cpu
