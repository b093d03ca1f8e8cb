#include "base/fork_safe_mutex.h"

#include <atomic>
#include <new>
#include <shared_mutex>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace sift::cpu {
namespace {

// Shared by those who hold a ForkSafeMutex; a thread that forks has it alone. Without destructors, since threads may
// run while the process exits.
alignas(std::shared_mutex) std::byte gate_memory[sizeof(std::shared_mutex)];
std::shared_mutex* const gate = new (gate_memory) std::shared_mutex;
thread_local int held = 0;  // mutexes of this thread
std::atomic<std::uint64_t> depth{0};

#if defined(__unix__) || defined(__APPLE__)
void before_fork() { gate->lock(); }
void after_fork_in_parent() { gate->unlock(); }
void after_fork_in_child() {
  // Made new, since threads that the child does not have may have been waiting for it.
  new (gate_memory) std::shared_mutex;
  depth.fetch_add(1, std::memory_order_relaxed);
}
[[maybe_unused]] const int registered = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
#endif

}  // namespace

void ForkSafeMutex::lock() {
  if (held++ == 0) gate->lock_shared();
  mutex_.lock();
}

void ForkSafeMutex::unlock() {
  mutex_.unlock();
  if (--held == 0) gate->unlock_shared();
}

std::uint64_t fork_depth() { return depth.load(std::memory_order_relaxed); }

}  // namespace sift::cpu
