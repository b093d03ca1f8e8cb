// Dense rows times a tile.
#pragma once

#include "simd/kernel_table.h"
#include "simd/rows/tile.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Large dense weights come from memory, and hardware prefetching stops at the end of each page: so much is fetched
// ahead at least, of the same columns of rows that come next.
inline constexpr std::uint32_t kDenseAhead = 4096 / sizeof(float);
// Columns whose weights, four each, fill a cache line.
inline constexpr std::uint32_t kDenseColumns = 4;

// sums[r] += the r-th weight of each column times its operands. With one tap, operands are contiguous, and no list of
// their offsets is needed.
template <int Rows, int Cols, int RowsPerCall, bool OneTap>
[[gnu::always_inline]] inline void multiply_dense(const RowsArgs& args, const float* value, Tile<Rows, Cols>* sums) {
  constexpr std::ptrdiff_t kColumnBytes = Rows * Cols * kBlock * sizeof(float);
  const std::byte* at = args.panel;
  const std::uint16_t* offset = args.offsets;
  const auto multiply = [&](std::uint32_t column) {
    const float* const weights = value + 4 * column;
    const auto use = [&](int v, Vec x) {
#pragma GCC unroll 4
      for (int r = 0; r < RowsPerCall; ++r) sums[r].vec[v] += splat(weights[r]) * x;
    };
    if constexpr (OneTap) {
#pragma GCC unroll 32
      for (int v = 0; v < Tile<Rows, Cols>::kVecs; ++v) use(v, load(at + column * kColumnBytes + v * kVecBytes));
    } else {
      for_each_vec<Rows, Cols>(args.panel + offset[column], args.pitch, use);
    }
  };
  std::uint32_t left = args.columns;
  const std::size_t ahead =
      std::size_t{(kDenseAhead + 4 * args.columns - 1) / (4 * args.columns)} * args.row_columns * 4;
#pragma GCC unroll 1
  for (; left >= kDenseColumns; left -= kDenseColumns) {
    __builtin_prefetch(value + ahead, 0, 2);
#pragma GCC unroll 4
    for (std::uint32_t column = 0; column < kDenseColumns; ++column) multiply(column);
    value += 4 * kDenseColumns;
    at += kDenseColumns * kColumnBytes;
    offset += kDenseColumns;
  }
#pragma GCC unroll 1
  for (std::uint32_t column = 0; column < left; ++column) multiply(column);
}

// `RowsPerCall` rows of dense weights share each operand. The weights come in groups of four rows, column by column.
template <int Rows, int Cols, int RowsPerCall>
void rows_dense(const RowsArgs& args) {
  using Sums = Tile<Rows, Cols>;
  float* acc = args.acc;
  for (std::uint32_t row = args.row_begin; row < args.row_end; row += RowsPerCall) {
    const float* const value = args.values + static_cast<std::size_t>(row / 4) * args.row_columns * 4 + row % 4;
    Sums sums[RowsPerCall];
#pragma GCC unroll 4
    for (int r = 0; r < RowsPerCall; ++r) {
      sums[r].start(args.bias, row + static_cast<std::uint32_t>(r), acc + r * Sums::kVecs * kVecLanes);
    }
    if (args.one_tap && Rows == 1) {
      multiply_dense<Rows, Cols, RowsPerCall, true>(args, value, sums);
    } else {
      multiply_dense<Rows, Cols, RowsPerCall, false>(args, value, sums);
    }
#pragma GCC unroll 4
    for (int r = 0; r < RowsPerCall; ++r) {
      sums[r].finish(args, row + static_cast<std::uint32_t>(r) - args.row_begin);
      acc += Sums::kVecs * kVecLanes;
    }
  }
}

}  // namespace sift::cpu::SIFT_ISA
