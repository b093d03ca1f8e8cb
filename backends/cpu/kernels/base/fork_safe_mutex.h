// Locks in a process that forks: a child has the memory of its parent, and of its threads only the one that forked.
#pragma once

#include <cstdint>
#include <mutex>

namespace sift::cpu {

// A mutex that no fork catches locked: fork waits until no thread holds any of them, so that a child finds all of them
// free, and whole what they guard.
class ForkSafeMutex {
 public:
  void lock();
  void unlock();

 private:
  std::mutex mutex_;
};

// How often the process was forked off another, counted from the one that loaded this code. What is not as many forks
// old has threads that this process does not have.
std::uint64_t fork_depth();

}  // namespace sift::cpu
