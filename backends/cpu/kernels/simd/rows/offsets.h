// The offsets of a list, read before they are needed.
//
// An address that waits for the load of its offset holds back the loads of all operands behind it. Where each weight
// loads its own, a core of Zen 5 makes 1.05 to 1.2 multiply-adds per cycle with operands in the first-level cache; with
// the offsets of several weights in one load, a turn ahead, 1.45 (docs/cpu-kernel-notes.md).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifndef SIFT_ISA
#error "define SIFT_ISA, the namespace, before including a kernel template"
#endif

namespace sift::cpu::SIFT_ISA {

// Two or four offsets at a time. Reads kOffsetSlack behind the last one.
template <int Count>
class OffsetsAhead {
 public:
  static_assert(Count == 2 || Count == 4);
  static_assert(std::endian::native == std::endian::little);

  // The first `Count` of `offsets`.
  [[gnu::always_inline]] explicit OffsetsAhead(const std::uint16_t* offsets) { load(offsets); }

  // Takes the offsets that were read, and reads the next ones.
  [[gnu::always_inline]] void step(const std::uint16_t* next) {
    own_ = next_;
    load(next);
  }

  // Of those taken.
  [[gnu::always_inline]] std::ptrdiff_t operator[](int i) const {
    return static_cast<std::ptrdiff_t>(own_ >> (16 * i) & 0xFFFFU);
  }

 private:
  using Word = std::conditional_t<Count == 4, std::uint64_t, std::uint32_t>;

  [[gnu::always_inline]] void load(const std::uint16_t* offsets) { std::memcpy(&next_, offsets, sizeof next_); }

  Word own_ = 0;
  Word next_;
};

// Calls use(i, value, operands) for every weight of a list, four in a row with i from 0 to 3, and those left over with
// 0. Leaves both pointers behind the list. A weight has `Values` values.
template <int Values, typename Use>
[[gnu::always_inline]] inline void for_each_weight(const std::byte* panel, const std::uint16_t*& offset,
                                                   const float*& value, const std::uint16_t* end, Use use) {
  OffsetsAhead<4> ahead(offset);
#pragma GCC unroll 1
  for (; end - offset >= 4; offset += 4, value += 4 * Values) {
    ahead.step(offset + 4);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) use(i, value + i * Values, panel + ahead[i]);
  }
#pragma GCC unroll 1
  for (; offset != end; ++offset, value += Values) use(0, value, panel + *offset);
}

}  // namespace sift::cpu::SIFT_ISA
