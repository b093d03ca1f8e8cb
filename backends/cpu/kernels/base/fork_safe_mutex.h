// Locks in a process that forks: a child has the memory of its parent, and of its threads only the one that forked.
#pragma once

#include <cstdint>
#include <mutex>

namespace sift::cpu {

// A mutex that no fork catches locked: fork waits until no thread holds any of them, so that a child finds all of them
// free, and what they guard consistent.
class ForkSafeMutex {
 public:
  void lock();
  void unlock();

 private:
  std::mutex mutex_;
};

// Forks between the process that loaded this code and this one. Threads that were started at another depth are not
// threads of this process.
std::uint64_t fork_depth();

}  // namespace sift::cpu
