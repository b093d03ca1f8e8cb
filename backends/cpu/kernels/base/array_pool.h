// Memory for arrays that are allocated and freed again and again, as in training steps.
#pragma once

#include <cstddef>

#include "base/address_pieces.h"
#include "base/address_range.h"
#include "base/fork_safe_mutex.h"

namespace sift::cpu {

// Arrays are in one range of addresses, where freed neighbours merge into one piece for the next array of any size. New
// pages are expensive, because the system clears them, and a step needs gigabytes.
class ArrayPool {
 public:
  // Aligned to a page.
  struct Block {
    float* begin = nullptr;
    std::size_t bytes = 0;
    bool pooled = false;  // false: allocated separately, because the range has no room
  };

  // An array of `count` floats, in the smallest piece that is large enough. Throws std::bad_alloc.
  Block take(std::size_t count);
  void give_back(Block block) noexcept;

  std::size_t idle() const;  // floats that were freed and are kept
  // Memory behind the last array that is in use goes back to the system.
  void release_idle();

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kMostSurplus = 8;  // up to 1/8 of the arrays in use, for pieces that do not fit

  void drop_surplus();

  mutable ForkSafeMutex mutex_;
  AddressRange range_;
  AddressPieces pieces_{range_.size()};
  std::size_t written_ = 0;  // beyond it no page has memory
  std::size_t out_ = 0;
  std::size_t most_out_ = 0;
};

}  // namespace sift::cpu
