// Locks in a process that forks. A child has the memory of its parent, but only the thread that forked.
#pragma once

#include <cstdint>
#include <mutex>

namespace sift::cpu {

// A mutex that is never locked in a fork: fork waits until no thread holds any of these mutexes. A child therefore
// finds them free, and the data that they guard consistent.
class ForkSafeMutex {
 public:
  void lock();
  void unlock();

 private:
  std::mutex mutex_;
};

// The number of forks between the process that loaded this code and this one. Threads that were started at another
// depth are not threads of this process.
std::uint64_t fork_depth();

}  // namespace sift::cpu
