// A mask of weights as bits: the weight at flat position i is active if bit i % 8, counted from the least significant
// one, of byte i / 8 is set.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sift::cpu {

class MaskBits {
 public:
  explicit MaskBits(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  // Calls take(i) for the active positions in [begin, end), in order.
  template <typename Take>
  void for_each(std::size_t begin, std::size_t end, Take take) const {
    for (std::size_t first = begin / kWord * kWord; first < end; first += kWord) {
      for (std::uint64_t left = word(first, begin, end); left != 0; left &= left - 1) {
        take(first + static_cast<std::size_t>(std::countr_zero(left)));
      }
    }
  }

  std::size_t count(std::size_t begin, std::size_t end) const {
    std::size_t sum = 0;
    for (std::size_t first = begin / kWord * kWord; first < end; first += kWord) {
      sum += static_cast<std::size_t>(std::popcount(word(first, begin, end)));
    }
    return sum;
  }

 private:
  static constexpr std::size_t kWord = 64;

  // The bits from `first` on, a multiple of 64, that lie in [begin, end).
  std::uint64_t word(std::size_t first, std::size_t begin, std::size_t end) const {
    const std::uint8_t* const bytes = bytes_.data() + first / 8;
    std::uint64_t bits = 0;
    if (first / 8 + sizeof(bits) <= bytes_.size()) {
      // One load, where the least significant byte comes first.
      for (std::size_t i = 0; i < sizeof(bits); ++i) bits |= std::uint64_t{bytes[i]} << (8 * i);
    } else {
      for (std::size_t i = 0; i < bytes_.size() - first / 8; ++i) bits |= std::uint64_t{bytes[i]} << (8 * i);
    }
    if (first < begin) bits &= ~std::uint64_t{0} << (begin - first);
    if (first + kWord > end) bits &= ~std::uint64_t{0} >> (first + kWord - end);
    return bits;
  }

  std::span<const std::uint8_t> bytes_;
};

}  // namespace sift::cpu
