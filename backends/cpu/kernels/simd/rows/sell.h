// Sparse rows times a tile, two or four at a time, from lists in SELL-C-sigma.
#pragma once

#include "simd/kernel_table.h"
#include "simd/rows/offsets.h"
#include "simd/rows/tile.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// sums[r] += the r-th weight times its operands.
template <int Row, int RowsPerCall, int Scale, typename Sums>
[[gnu::always_inline]] inline void multiply_sell(const SomeWeights<Sums, RowsPerCall>& weights, const std::byte* panel,
                                                 const OffsetsAhead<RowsPerCall>& offsets, std::ptrdiff_t pitch,
                                                 Sums* sums) {
  if constexpr (Row < RowsPerCall) {
    sums[Row].multiply_add(weights.template splat<Row>(), panel + offsets[Row] * Scale, pitch);
    multiply_sell<Row + 1, RowsPerCall, Scale>(weights, panel, offsets, pitch, sums);
  }
}

// Weights are read once per tile, from memory if there are many. Hardware prefetching stops at the end of each page.
inline constexpr int kListAhead = 2048;

// In steps of whole cache lines of both lists: a mispredicted end of the loop costs more than a few extra lines.
[[gnu::always_inline]] inline void prefetch_lists(const float* values, const std::uint16_t* offsets,
                                                  std::ptrdiff_t count) {
  constexpr int kStep = 64;
  constexpr int kLine = 64;
#pragma GCC unroll 1
  for (std::ptrdiff_t i = kListAhead; i < kListAhead + count; i += kStep) {
#pragma GCC unroll 4
    for (int at = 0; at < kStep; at += kLine / sizeof(float)) __builtin_prefetch(values + i + at, 0, 2);
#pragma GCC unroll 2
    for (int at = 0; at < kStep; at += kLine / sizeof(std::uint16_t)) __builtin_prefetch(offsets + i + at, 0, 2);
  }
}

// Two or four rows at a time, for tiles in which the sums of one row are too few to keep the multipliers busy. Rows are
// sorted by the lengths of their lists, so that a few zero weights make the lists of neighbours equally long. They end
// together, and most ends are predicted.
template <typename Sums, int RowsPerCall, int Scale>
[[gnu::always_inline]] inline void rows_scaled_sell(const RowsArgs& args) {
  const std::byte* const panel = args.panel;
  const std::ptrdiff_t pitch = args.pitch;
  const std::uint32_t* ends = args.starts + args.row_begin / RowsPerCall;
  const std::uint16_t* offset = args.offsets + *ends;
  const float* value = args.values + *ends;
  const std::uint16_t* const last_rows = args.order + args.row_end;
  for (const std::uint16_t* rows = args.order + args.row_begin; rows != last_rows; rows += RowsPerCall) {
    Sums sums[RowsPerCall];
#pragma GCC unroll 4
    for (int r = 0; r < RowsPerCall; ++r) {
      sums[r].clear();
    }
    const std::uint16_t* const end = args.offsets + *++ends;
    prefetch_lists(value, offset, end - offset);
    OffsetsAhead<RowsPerCall> ahead(offset);
#pragma GCC unroll 1
    for (; offset != end; offset += RowsPerCall, value += RowsPerCall) {
      ahead.step(offset + RowsPerCall);
      const SomeWeights<Sums, RowsPerCall> weights(value);
      multiply_sell<0, RowsPerCall, Scale>(weights, panel, ahead, pitch, sums);
    }
#pragma GCC unroll 4
    for (int r = 0; r < RowsPerCall; ++r) {
      sums[r].add(args.bias, rows[r], args.acc + rows[r] * std::size_t{Sums::kFloats});
      sums[r].finish(args, rows[r]);
    }
  }
}

// Tiles may share the lists of a tile of one block, whose offsets are scaled.
template <typename Sums, int RowsPerCall>
void rows_sell(const RowsArgs& args) {
  if constexpr (Sums::kRowBlocks > 1) {
    if (args.scales_offsets) return rows_scaled_sell<Sums, RowsPerCall, Sums::kRowBlocks>(args);
  }
  rows_scaled_sell<Sums, RowsPerCall, 1>(args);
}

// Four rows at a time if the registers hold their sums, otherwise two.
template <typename Sums>
constexpr SellRows sell_rows_of() {
  if constexpr (4 * Sums::kVecs <= kAccumulators) {
    return {&rows_sell<Sums, 4>, 4};
  } else if constexpr (2 * Sums::kVecs <= kAccumulators) {
    return {&rows_sell<Sums, 2>, 2};
  } else {
    return {};
  }
}

template <int Rows, int Cols = 1>
SellRows find_sell_rows_of_width(int columns) {
  if constexpr (Tile<Rows, Cols>::kVecs < kEnoughSums) {
    if (columns == Cols) return sell_rows_of<Tile<Rows, Cols>>();
    return find_sell_rows_of_width<Rows, Cols + 1>(columns);
  } else {
    return {};
  }
}

inline SellRows find_sell_rows(int rows, int columns) {
  if (rows == 1) return find_sell_rows_of_width<1>(columns);
  if (rows == 2) return find_sell_rows_of_width<2>(columns);
  return {};
}

}  // namespace sift::cpu::SIFT_ISA
