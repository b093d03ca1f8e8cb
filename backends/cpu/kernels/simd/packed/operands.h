// Rows of x as kernels of packed weights read them: in whole words of columns, one row after the other, or in groups.
#pragma once

#include <algorithm>
#include <bit>
#include <limits>

#include "simd/packed/row_kernels.h"
#include "simd/reorder.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Rows of the next group of x, of as many as are left: the last ones of a group may not be there.
inline int next_group_rows(int left) { return left > 4 ? 8 : left > 2 ? 4 : left; }

// The same of rows that stay floats; 0: they are not in groups. Eight rows take hardly longer than five, where
// registers hold sums of two rows of weights with them all.
inline int next_natural_group(ValueType type, int left) {
  if (left >= kRowsOfGroup) return kRowsOfGroup;
  if (kVecLanes < 16) return 0;
  const int group = next_group_rows(left);
  const int least = type == ValueType::float32 ? kRowsOfGroup / 2 : kRowsOfGroup;
  return group >= least ? group : 0;
}

// True if one is infinite or NaN, or so large that sums of products with int8 weights, which some kernels multiply by
// 2^24 in between, may not be finite.
inline bool is_unbounded(const OperandArgs& args) {
  constexpr std::uint32_t kMostOfBytes = std::bit_cast<std::uint32_t>(0x1p64F);
  constexpr std::uint32_t kInfinite = std::bit_cast<std::uint32_t>(std::numeric_limits<float>::infinity());
  const std::uint32_t most = args.type == ValueType::int8 ? kMostOfBytes : kInfinite;
  std::uint32_t strange = 0;
  const auto* const bits = reinterpret_cast<const std::uint32_t*>(args.from);
  for (std::int64_t i = 0; i < args.rows * args.columns; ++i) {
    std::uint32_t one;
    __builtin_memcpy(&one, bits + i, sizeof one);
    strange |= static_cast<std::uint32_t>((one & 0x7FFFFFFFU) >= most);
  }
  return strange != 0;
}

// A row, whose words go to places `step` floats apart.
inline void place_row(const OperandArgs& args, int row, float* to, std::ptrdiff_t step) {
  const float* const from = args.from + row * args.columns;
  for (std::int64_t word = 0; word < args.words; ++word) {
    float* const at = to + word * step;
    const std::int64_t left = args.columns - word * kWordColumns;
    if (left >= kWordColumns) {
      __builtin_memcpy(at, from + word * kWordColumns, kWordColumns * sizeof(float));
      continue;
    }
    for (std::int64_t i = 0; i < kWordColumns; ++i) at[i] = i < left ? from[word * kWordColumns + i] : 0.0F;
  }
}

// In groups, [words][rows of a group][64], with zeros for rows that are not there, and those after them one by one.
// Returns how many are in groups.
inline int place_rows(const OperandArgs& args, bool in_groups) {
  const std::ptrdiff_t x_floats = args.words * kWordColumns;
  int first = 0;
  while (first < args.rows) {
    const int group = in_groups ? next_natural_group(args.type, args.rows - first) : 0;
    if (group == 0) break;
    float* const to = args.x + first * x_floats;
    for (int i = 0; i < group; ++i) {
      float* const own = to + i * kWordColumns;
      if (first + i < args.rows) {
        place_row(args, first + i, own, group * kWordColumns);
        continue;
      }
      for (std::int64_t word = 0; word < args.words; ++word) {
        std::fill_n(own + word * group * kWordColumns, kWordColumns, 0.0F);
      }
    }
    first += group;
  }
  for (int row = first; row < args.rows; ++row) place_row(args, row, args.x + row * x_floats, kWordColumns);
  return std::min(first, args.rows);
}

template <int Width>
inline void interleave_rows(const OperandArgs& args) {
  std::int64_t column = 0;
#if defined(__AVX512F__)
  for (; column + kBlock <= args.columns; column += kBlock) {
    __m512 block[kBlock];
#pragma GCC unroll 16
    for (int row = 0; row < kBlock; ++row) {
      const bool is_there = row < Width && row < args.rows;
      block[row] = is_there ? _mm512_loadu_ps(args.from + row * args.columns + column) : _mm512_setzero_ps();
    }
    transpose_block(block);
#pragma GCC unroll 16
    for (int i = 0; i < kBlock; ++i) __builtin_memcpy(args.x + (column + i) * Width, &block[i], Width * sizeof(float));
  }
#endif
  for (; column < args.columns; ++column) {
    for (int row = 0; row < Width; ++row) {
      args.x[column * Width + row] = row < args.rows ? args.from[row * args.columns + column] : 0.0F;
    }
  }
}

inline OperandForm interleaved_operands(const OperandArgs& args) {
  switch (interleaved_rows(args.rows)) {
    case 4: interleave_rows<4>(args); break;
    case 8: interleave_rows<8>(args); break;
    default: interleave_rows<16>(args); break;
  }
  return OperandForm::interleaved;
}

#if defined(__AVX512F__)
// Up to 16 columns; those behind the last are zero.
[[gnu::always_inline]] inline __m512 some_columns(const float* from, std::int64_t left) {
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFFU : (1U << std::max<std::int64_t>(left, 0)) - 1U);
  return _mm512_maskz_loadu_ps(mask, from);
}

// Rows in groups, [words times 4][rows of the group][16].
inline OperandForm windowed_operands(const OperandArgs& args) {
  for (int first = 0; first < args.rows; first += next_group_rows(args.rows - first)) {
    const int group = next_group_rows(args.rows - first);
    float* to = args.x + first * args.words * kWordColumns;
    for (std::int64_t column = 0; column < args.words * kWordColumns; column += kMoveColumns) {
      for (int row = first; row < first + group; ++row, to += kMoveColumns) {
        const bool is_there = row < args.rows;
        const float* const from = args.from + (is_there ? row * args.columns + column : 0);
        _mm512_store_ps(to, some_columns(from, is_there ? args.columns - column : 0));
      }
    }
  }
  return OperandForm::windowed;
}
#else
inline OperandForm windowed_operands(const OperandArgs& args) {
  place_rows(args, false);
  return OperandForm::unbounded;
}
#endif

inline OperandForm natural_operands(const OperandArgs& args) {
  if (is_unbounded(args)) {
    place_rows(args, false);
    return OperandForm::unbounded;
  }
  if (args.lists) return interleaved_operands(args);
  if (args.windows) return windowed_operands(args);
#if defined(__AVX2__)
  place_rows(args, args.group_columns == 0);
#else
  place_rows(args, false);
#endif
  return OperandForm::natural;
}

}  // namespace sift::cpu::SIFT_ISA
