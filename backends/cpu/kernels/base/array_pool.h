// Memory for arrays that come and go, as those of training steps do.
#pragma once

#include <cstddef>

#include "base/address_pieces.h"
#include "base/address_range.h"
#include "base/fork_safe_mutex.h"

namespace sift::cpu {

// Arrays lie in one range of addresses, where neighbours that came back are one piece for whatever size comes next. New
// pages are the dearest memory there is: the system clears them, and a step asks for gigabytes.
class ArrayPool {
 public:
  // Aligned to a page.
  struct Block {
    float* begin = nullptr;
    std::size_t bytes = 0;
    bool pooled = false;  // false: by itself, where the range of addresses has no room
  };

  // Of `count` floats, in the smallest piece that is large enough. Throws std::bad_alloc.
  Block take(std::size_t count);
  void give_back(Block block) noexcept;

  std::size_t idle() const;  // floats that came back and are kept
  // Memory behind the last array that is out goes back to the system.
  void release_idle();

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kMostSurplus = 8;  // an eighth of what was out, for pieces that do not fit together

  void drop_surplus();

  mutable ForkSafeMutex mutex_;
  AddressRange range_;
  AddressPieces pieces_{range_.size()};
  std::size_t written_ = 0;  // beyond it no page has memory
  std::size_t out_ = 0;
  std::size_t most_out_ = 0;
};

}  // namespace sift::cpu
