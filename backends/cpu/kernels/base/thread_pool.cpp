#include "base/thread_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/processors.h"

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

// Loops that may run at once, each with its own caller; further ones do without workers.
constexpr std::size_t kLoops = 8;

// Own cache lines: each thread counts up its own range, and only thieves touch another's.
struct alignas(64) Range {
  std::atomic<std::int64_t> next{0};
  std::int64_t end = 0;
  std::atomic<bool> is_inside{false};  // whether its worker is at work in the loop, in any range
};

}  // namespace

// What one caller shares out.
struct ThreadPool::Loop {
  std::mutex busy;  // held by the caller
  std::vector<Range> ranges;

  // Whether the loop takes in workers. Late ones are not waited for: a worker that the system does not run, because
  // others need the processor, must not hold up what the rest have done. Workers that are at work say so in lines of
  // their own, because a counter that all change takes microseconds where they are many.
  alignas(64) std::atomic<bool> is_open{false};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<std::uint32_t> left{0};    // counts workers that left while the caller slept
  std::atomic<std::uint32_t> number{0};  // what `generation` was when it opened
  std::atomic<std::size_t> workers{0};   // the first ones, which may take part
  int callers_processor = -1;
  Call call = nullptr;
  const void* context = nullptr;
  std::mutex failure_mutex;
  std::exception_ptr failure;

  bool enter(std::size_t self);
  void work(std::size_t self);
  void leave(std::size_t self);
  void close();
};

struct ThreadPool::State {
  // Starts the workers.
  explicit State(int threads);
  void stop();

  const std::uint64_t depth = fork_depth();  // of the process that the workers belong to
  const int processors = allowed_processors();
  const bool spreads;  // there is a processor for each thread
  std::array<Loop, kLoops> loops;
  Turns turns{processors};

  alignas(64) std::atomic<std::uint32_t> generation{0};  // counts loops; workers wait for it to change
  std::atomic<std::uint32_t> latest{0};                  // the loop that opened last
  std::atomic<bool> stopping{false};

  std::vector<std::thread> workers;

  std::int64_t helpers() const;
  void wait_for_loops(std::size_t self);
  void work_where_open(std::size_t self, std::array<std::uint32_t, kLoops>& worked);
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
void ThreadPool::Loop::work(std::size_t self) {
  for (std::size_t step = 0; step < ranges.size(); ++step) {
    Range& range = ranges[(self + step) % ranges.size()];
    // A look at a range that is done leaves its line with others; counting would fetch it.
    while (range.next.load(std::memory_order_relaxed) < range.end) {
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

// Either the worker sees that the loop is closed, or the caller that closes it sees the worker inside: all four
// accesses are in one order.
bool ThreadPool::Loop::enter(std::size_t self) {
  ranges[self].is_inside.store(true, std::memory_order_seq_cst);
  if (is_open.load(std::memory_order_seq_cst)) return true;
  leave(self);
  return false;
}

void ThreadPool::Loop::leave(std::size_t self) {
  ranges[self].is_inside.store(false, std::memory_order_seq_cst);
  if (!caller_sleeps.load(std::memory_order_seq_cst)) return;
  left.fetch_add(1, std::memory_order_seq_cst);
  left.notify_one();
}

// Returns when no worker is inside any more.
void ThreadPool::Loop::close() {
  is_open.store(false, std::memory_order_seq_cst);
  std::size_t gone = 1;
  const auto all_left = [&] {
    while (gone < ranges.size() && !ranges[gone].is_inside.load(std::memory_order_seq_cst)) ++gone;
    return gone == ranges.size();
  };
  if (spin_until(all_left)) return;
  caller_sleeps.store(true, std::memory_order_seq_cst);
  for (std::uint32_t seen = left.load(std::memory_order_seq_cst); !all_left();
       seen = left.load(std::memory_order_seq_cst)) {
    left.wait(seen, std::memory_order_seq_cst);
  }
  caller_sleeps.store(false, std::memory_order_seq_cst);
}

void ThreadPool::State::wait_for_loops(std::size_t self) {
  std::uint32_t seen = 0;
  std::array<std::uint32_t, kLoops> worked{};
  for (;;) {
    const auto changed = [&] { return generation.load(std::memory_order_acquire) != seen; };
    if (!spin_until(changed)) generation.wait(seen, std::memory_order_acquire);
    if (!changed()) continue;
    seen = generation.load(std::memory_order_acquire);
    if (stopping.load(std::memory_order_relaxed)) return;
    work_where_open(self, worked);
  }
}

// Goes round the loops, from the latest on, until none is open that the worker has not been in. `worked` has the
// numbers of those that it has: there is nothing left in them for it.
void ThreadPool::State::work_where_open(std::size_t self, std::array<std::uint32_t, kLoops>& worked) {
  std::size_t at = latest.load(std::memory_order_relaxed);
  for (std::size_t passed = 0; passed < kLoops; ++passed, at = (at + 1) % kLoops) {
    Loop& loop = loops[at];
    if (!loop.is_open.load(std::memory_order_acquire) || loop.number.load(std::memory_order_relaxed) == worked[at] ||
        self > loop.workers.load(std::memory_order_relaxed))
      continue;
    // The loop may be over by now, and another one open: that one is as good.
    if (!loop.enter(self)) continue;
    worked[at] = loop.number.load(std::memory_order_relaxed);
    // Some systems wake a thread on the processor of the one that wakes it, and spread the two milliseconds later.
    if (spreads && current_processor() == loop.callers_processor) migrate_from(loop.callers_processor);
    loop.work(self);
    loop.leave(self);
    passed = 0;
  }
}

// How many workers the loop of a request may have. Requests at once share the processors: two on two processors take a
// thread each, which does not wait for others after every operator, nor fetch from another core what that has written.
std::int64_t ThreadPool::State::helpers() const {
  const auto all = static_cast<std::int64_t>(workers.size());
  const int requests = turns.begun();
  return requests <= 1 ? all : std::clamp(std::int64_t{processors} - requests, std::int64_t{0}, all);
}

ThreadPool::State::State(int threads) : spreads(threads <= processors && current_processor() >= 0) {
  const auto count = static_cast<std::size_t>(threads);
  for (Loop& loop : loops) loop.ranges = std::vector<Range>(count);
  workers.reserve(count - 1);
  try {
    for (std::size_t worker = 1; worker < count; ++worker) {
      workers.emplace_back([this, worker] { wait_for_loops(worker); });
    }
  } catch (const std::exception&) {
    // The system gives no more threads: those there are share the work.
  }
}

void ThreadPool::State::stop() {
  stopping.store(true, std::memory_order_relaxed);
  generation.fetch_add(1, std::memory_order_release);
  generation.notify_all();
  for (std::thread& worker : workers) worker.join();
}

ThreadPool::ThreadPool(int threads) {
  if (threads < 1) throw std::invalid_argument("a pool has at least one thread");
  state_ = std::make_unique<State>(threads).release();
}

ThreadPool::~ThreadPool() {
  State* const state = state_.load(std::memory_order_relaxed);
  // Of a parent's state nothing may be touched: what stands for its threads here is threads of others, or none.
  if (state->depth != fork_depth()) return;
  state->stop();
  delete state;
}

int ThreadPool::threads() const { return static_cast<int>(state_.load(std::memory_order_acquire)->workers.size()) + 1; }

Turns& ThreadPool::turns() { return started()->turns; }

// The state of this process.
ThreadPool::State* ThreadPool::started() {
  State* state = state_.load(std::memory_order_acquire);
  if (state->depth == fork_depth()) return state;
  const std::lock_guard lock(starting_);
  state = state_.load(std::memory_order_relaxed);
  if (state->depth != fork_depth()) {
    state = std::make_unique<State>(threads()).release();
    state_.store(state, std::memory_order_release);
  }
  return state;
}

void ThreadPool::run(std::int64_t count, Call call, const void* context) {
  const auto alone = [&] {
    for (std::int64_t index = 0; index < count; ++index) call(context, index);
  };
  if (count <= 1) return alone();
  State& state = *started();
  const std::int64_t helpers = state.helpers();
  if (helpers == 0) return alone();
  std::unique_lock<std::mutex> lock;
  const auto free = std::ranges::find_if(state.loops, [&](Loop& loop) {
    lock = std::unique_lock(loop.busy, std::try_to_lock);
    return lock.owns_lock();
  });
  if (free == state.loops.end()) return alone();
  Loop& loop = *free;
  const std::int64_t parts = helpers + 1;
  for (std::int64_t part = 0; part < static_cast<std::int64_t>(loop.ranges.size()); ++part) {
    Range& range = loop.ranges[static_cast<std::size_t>(part)];
    range.end = part < parts ? count * (part + 1) / parts : 0;
    range.next.store(part < parts ? count * part / parts : 0, std::memory_order_relaxed);
  }
  loop.callers_processor = current_processor();
  loop.call = call;
  loop.context = context;
  loop.failure = nullptr;
  // Workers read it while the loop is open alone, but for a look that costs them a loop at most.
  const std::uint32_t number = state.generation.load(std::memory_order_relaxed) + 1;
  loop.number.store(number, std::memory_order_relaxed);
  loop.workers.store(static_cast<std::size_t>(helpers), std::memory_order_relaxed);
  loop.is_open.store(true, std::memory_order_release);
  state.latest.store(static_cast<std::uint32_t>(free - state.loops.begin()), std::memory_order_relaxed);
  state.generation.fetch_add(1, std::memory_order_release);
  state.generation.notify_all();
  loop.work(0);
  loop.close();
  if (loop.failure) {
    const std::exception_ptr failure = std::exchange(loop.failure, nullptr);
    lock.unlock();
    std::rethrow_exception(failure);
  }
}

}  // namespace sift::cpu
