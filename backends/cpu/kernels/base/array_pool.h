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
  // At least `count` floats: of the memory that came back the smallest that is large enough, if it is not much larger.
  std::unique_ptr<AlignedBuffer> take(std::size_t count);

  // It is kept: what is out and what lies idle are together little more than what was out at one time. Where new memory
  // would make it more, the first to come back is the first to go.
  void give_back(std::unique_ptr<AlignedBuffer> buffer);

  std::size_t idle() const;  // floats

 private:
  using Buffers = std::deque<std::unique_ptr<AlignedBuffer>>;
  static constexpr std::size_t kMostWaste = 4;    // a quarter of what is asked for
  static constexpr std::size_t kMostSurplus = 8;  // an eighth of what was out, for sizes that do not follow each other

  void take_surplus(Buffers& surplus);

  mutable ForkSafeMutex mutex_;
  Buffers free_;
  std::size_t idle_ = 0;
  std::size_t out_ = 0;
  std::size_t most_out_ = 0;
};

}  // namespace sift::cpu
