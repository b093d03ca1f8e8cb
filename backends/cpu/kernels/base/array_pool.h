// Memory of arrays that a caller gets and drops run after run: fresh pages, which the system clears one by one, would
// take longer than much of what is written to them.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "base/aligned_buffer.h"
#include "base/fork_safe_mutex.h"

namespace sift::cpu {

class ArrayPool {
 public:
  // At least `count` floats: memory that came back, if some is large enough and not twice too large.
  std::unique_ptr<AlignedBuffer> take(std::size_t count);

  // What lies idle is never more than what was out at one time; the first to come back is the first to go.
  void give_back(std::unique_ptr<AlignedBuffer> buffer);

  std::size_t idle() const;  // floats

 private:
  mutable ForkSafeMutex mutex_;
  std::deque<std::unique_ptr<AlignedBuffer>> free_;
  std::size_t idle_ = 0;
  std::size_t out_ = 0;
  std::size_t most_out_ = 0;
};

}  // namespace sift::cpu
