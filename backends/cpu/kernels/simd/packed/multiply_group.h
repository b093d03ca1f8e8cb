// Rows of packed weights times a group of four or eight rows of x: values are expanded once for all of them.
#pragma once

#include <algorithm>

#include "base/cache.h"
#include "simd/packed/expand.h"
#include "simd/packed/operands.h"
#include "simd/packed/prefetch.h"

#if defined(__AVX2__)

namespace sift::cpu::SIFT_ISA {

// Rows of weights that all rows of x are multiplied by before the next.
inline constexpr std::int64_t kRowsAtOnce = 32;
// Rows of weights whose products share what is loaded of a group: as many as there are registers for their sums.
template <int Group>
inline constexpr int kRowsTogether = (kRegisters == 32 ? 2 : 1) * kRowsOfGroup / Group;
// Columns are cut into slices, of which a group stays in the first-level cache while rows of weights pass.
struct Slicing {
  std::int64_t words;  // of a slice, at most
  int ahead;           // rows of weights ahead of which values are asked for
};
inline constexpr int kMostRowsAhead = 8;

// With AVX-512 32 KiB of x (docs/cpu-kernel-notes.md), or half of them where slices of a row lie far apart: more of
// what is under way is in the cache then. With AVX2 16 KiB.
template <int Group>
inline Slicing slicing_of(std::int64_t words) {
  constexpr std::int64_t kManyWords = 48;
  if (kRegisters < 32) return {8, 2};
  if (Group == kRowsOfGroup) return words > kManyWords ? Slicing{8, 8} : Slicing{16, 4};
  return {level1_cache_bytes() / 3 * 2 / (Group * kWordColumns * static_cast<std::int64_t>(sizeof(float))), 8};
}

// sums[row][i] += the products of words [begin, end); `values` go on behind them.
template <ValueType Type, bool Masked, int Group, int Rows>
[[gnu::always_inline]] inline void multiply_slice(const PackedRowsArgs& args, const float* x, std::int64_t row,
                                                  std::int64_t begin, std::int64_t end, const std::byte** values,
                                                  const std::byte* const* next, float* sums) {
  const std::uint64_t* masks[Rows];
  const std::byte* value[Rows];
  std::ptrdiff_t ahead[Rows];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    masks[r] = Masked ? args.masks + (row + r) * args.words : nullptr;
    value[r] = values[r];
    ahead[r] = next[r] - values[r];
  }
  Vec products[Rows][Group]{};
#pragma GCC unroll 1
  for (std::int64_t word = begin; word < end; ++word) {
    const float* const operands = own_register(x + word * Group * kWordColumns);
    WordParts parts[Rows];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) parts[r] = parts_of(Masked ? masks[r][word] : ~std::uint64_t{0});
#pragma GCC unroll 8
    for (int part = 0; part < WordParts::kCount; ++part) {
      Vec weights[Rows];
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const std::byte* const at = value[r] + parts[r].before[part] * bytes_of(Type);
        prefetch_lines(at + ahead[r], 1, args.into_level2);
        weights[r] = Masked ? expanded<Type>(parts[r].lanes[part], at) : converted<Type>(at);
      }
#pragma GCC unroll 8
      for (int i = 0; i < Group; ++i) {
        const Vec operand = loaded(operands + i * kWordColumns + part * kVecLanes);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) products[r][i] += weights[r] * operand;
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) value[r] += parts[r].before[WordParts::kCount] * bytes_of(Type);
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    values[r] = value[r];
#pragma GCC unroll 2
    for (int i = 0; i < Group; i += 4) add_lane_sums(products[r] + i, sums + r * Group + i);
  }
}

// `First` to before `First + Group` of the rows of x, the last of which may not be there, and up to kRowsAtOnce rows of
// weights.
template <ValueType Type, bool Masked, int Group>
void multiply_group(const PackedRowsArgs& args, std::int64_t row_begin, std::int64_t row_end, int first) {
  constexpr int kTogether = kRowsTogether<Group>;
  const float* const x = args.x + first * args.words * kWordColumns;
  const std::int64_t rows = row_end - row_begin;
  const Slicing slicing = slicing_of<Group>(args.words);
  const std::byte* values[kRowsAtOnce + kMostRowsAhead + kTogether];
  find_values(args, row_begin, row_end, slicing.ahead + kTogether, values);
  alignas(64) float sums[kRowsAtOnce * Group]{};
  const std::int64_t slices = (args.words + slicing.words - 1) / slicing.words;
  const std::int64_t slice_words = (args.words + slices - 1) / slices;
  for (std::int64_t begin = 0; begin < args.words; begin += slice_words) {
    const std::int64_t end = std::min(begin + slice_words, args.words);
    std::int64_t row = 0;
    // The rows after the next, whose values do not follow these where a slice is not all columns; behind the last row
    // those of the next slice.
    const auto next = [&]() -> const std::byte* const* {
      const std::int64_t ahead = row + slicing.ahead;
      return values + (end < args.words && ahead >= rows && rows > slicing.ahead ? ahead - rows : ahead);
    };
    for (; row + kTogether <= rows; row += kTogether) {
      // Where a slice is not all columns, the masks of these rows do not follow each other.
      if (Masked && slices > 1) {
        const std::uint64_t* const masks = args.masks + (row_begin + row + slicing.ahead) * args.words + begin;
        for (int r = 0; r < kTogether; ++r) {
          prefetch_lines(masks + r * args.words, (slice_words + kLineWords - 1) / kLineWords, true);
        }
      }
      multiply_slice<Type, Masked, Group, kTogether>(args, x, row_begin + row, begin, end, values + row, next(),
                                                     sums + row * Group);
    }
    for (; row < rows; ++row) {
      multiply_slice<Type, Masked, Group, 1>(args, x, row_begin + row, begin, end, values + row, values + row,
                                             sums + row * Group);
    }
  }
  constexpr float kUnit = Masked ? kExpandedUnit<Type> : 1.0F;
  const int kept = std::min(Group, args.x_rows - first);
  for (int i = 0; i < kept; ++i) {
    float* const out = args.out + (first + i) * args.x_stride;
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      const float scale = args.scales == nullptr ? 1.0F : args.scales[row];
      out[row * args.row_stride] = args.bias[row] + scale * (kUnit * sums[(row - row_begin) * Group + i]);
    }
  }
}

}  // namespace sift::cpu::SIFT_ISA

#endif
