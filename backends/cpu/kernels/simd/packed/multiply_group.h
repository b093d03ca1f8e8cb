// Rows of packed weights times a group of eight rows of x: values are expanded once for all of them.
#pragma once

#include <algorithm>

#include "simd/packed/expand.h"
#include "simd/packed/operands.h"
#include "simd/packed/prefetch.h"

#if defined(__AVX2__)

namespace sift::cpu::SIFT_ISA {

// Rows of weights that all rows of x are multiplied by before the next.
inline constexpr std::int64_t kRowsAtOnce = 32;
// Rows of weights whose products share what is loaded of x: as many as there are registers for their sums.
inline constexpr int kRowsTogether = kRegisters == 32 ? 2 : 1;
// Words of a group that stay in the first-level cache: 16 KiB of 32, and 32 of 48 where registers are wide.
inline constexpr std::int64_t kMostSliceWords = kVecLanes == 8 ? 8 : 16;

// sums[row][i] += the products of words [begin, end); `values` go on behind them.
template <ValueType Type, bool Masked, int Rows>
[[gnu::always_inline]] inline void multiply_slice(const PackedRowsArgs& args, const float* x, std::int64_t row,
                                                  std::int64_t begin, std::int64_t end, const std::byte** values,
                                                  const std::byte* const* next, float* sums) {
  const std::uint64_t* masks[Rows];
  const std::byte* value[Rows];
  std::ptrdiff_t ahead[Rows];
#pragma GCC unroll 2
  for (int r = 0; r < Rows; ++r) {
    masks[r] = Masked ? args.masks + (row + r) * args.words : nullptr;
    value[r] = values[r];
    ahead[r] = next[r] - values[r];
  }
  Vec products[Rows][kRowsOfGroup]{};
#pragma GCC unroll 1
  for (std::int64_t word = begin; word < end; ++word) {
    const float* const operands = own_register(x + word * kGroupStep);
    WordParts parts[Rows];
#pragma GCC unroll 2
    for (int r = 0; r < Rows; ++r) parts[r] = parts_of(Masked ? masks[r][word] : ~std::uint64_t{0});
#pragma GCC unroll 8
    for (int part = 0; part < WordParts::kCount; ++part) {
      Vec weights[Rows];
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) {
        const std::byte* const at = value[r] + parts[r].before[part] * bytes_of(Type);
        prefetch_lines(at + ahead[r], 1, args.into_level2);
        weights[r] = Masked ? expanded<Type>(parts[r].lanes[part], at) : converted<Type>(at);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRowsOfGroup; ++i) {
        const Vec operand = loaded(operands + i * kWordColumns + part * kVecLanes);
#pragma GCC unroll 2
        for (int r = 0; r < Rows; ++r) products[r][i] += weights[r] * operand;
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < Rows; ++r) value[r] += parts[r].before[WordParts::kCount] * bytes_of(Type);
  }
#pragma GCC unroll 2
  for (int r = 0; r < Rows; ++r) {
    values[r] = value[r];
    add_lane_sums(products[r], sums + r * kRowsOfGroup);
    add_lane_sums(products[r] + 4, sums + r * kRowsOfGroup + 4);
  }
}

// `First` to before `First + kRowsOfGroup` of the rows of x, and up to kRowsAtOnce rows of weights.
template <ValueType Type, bool Masked>
void multiply_group(const PackedRowsArgs& args, std::int64_t row_begin, std::int64_t row_end, int first) {
  const float* const x = args.x + first * args.words * kWordColumns;
  const std::int64_t rows = row_end - row_begin;
  constexpr int kAhead = 2 * kRowsTogether;
  const std::byte* values[kRowsAtOnce + kAhead + kRowsTogether];
  find_values(args, row_begin, row_end, kAhead + kRowsTogether, values);
  alignas(64) float sums[kRowsAtOnce * kRowsOfGroup]{};
  const std::int64_t slices = (args.words + kMostSliceWords - 1) / kMostSliceWords;
  const std::int64_t slice_words = (args.words + slices - 1) / slices;
  for (std::int64_t begin = 0; begin < args.words; begin += slice_words) {
    const std::int64_t end = std::min(begin + slice_words, args.words);
    std::int64_t row = 0;
    // The rows after the next, whose values do not follow these where a slice is not all columns; behind the last row
    // those of the next slice.
    const auto next = [&]() -> const std::byte* const* {
      const std::int64_t ahead = row + kAhead;
      return values + (end < args.words && ahead >= rows && rows > kAhead ? ahead - rows : ahead);
    };
    for (; row + kRowsTogether <= rows; row += kRowsTogether) {
      // Where a slice is not all columns, the masks of two rows do not follow each other.
      if (Masked && slices > 1) {
        const std::uint64_t* const masks = args.masks + (row_begin + row + kAhead) * args.words + begin;
        for (int r = 0; r < kRowsTogether; ++r) {
          prefetch_lines(masks + r * args.words, (slice_words + kLineWords - 1) / kLineWords, true);
        }
      }
      multiply_slice<Type, Masked, kRowsTogether>(args, x, row_begin + row, begin, end, values + row, next(),
                                                  sums + row * kRowsOfGroup);
    }
    for (; row < rows; ++row) {
      multiply_slice<Type, Masked, 1>(args, x, row_begin + row, begin, end, values + row, values + row,
                                      sums + row * kRowsOfGroup);
    }
  }
  constexpr float kUnit = Masked ? kExpandedUnit<Type> : 1.0F;
  for (int i = 0; i < kRowsOfGroup; ++i) {
    float* const out = args.out + (first + i) * args.x_stride;
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      const float scale = args.scales == nullptr ? 1.0F : args.scales[row];
      out[row * args.row_stride] = args.bias[row] + scale * (kUnit * sums[(row - row_begin) * kRowsOfGroup + i]);
    }
  }
}

}  // namespace sift::cpu::SIFT_ISA

#endif
