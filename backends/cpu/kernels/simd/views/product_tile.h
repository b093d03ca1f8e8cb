// Products of two computed matrices: the columns of one lie in the lanes, the values of the other are broadcast, and
// the sums of some rows and blocks of columns stay in registers.
#pragma once

#include "simd/vec.h"
#include "simd/views/kernel_table.h"

namespace sift::cpu::SIFT_ISA {

// Blocks of columns that share each value of a row.
inline constexpr int kMostProductBlocks = kVecsPerBlock == 1 ? 4 : 1;

// Rows that share the columns: as many as the registers hold sums of, besides the columns and a value, and a power of
// two, so that half as many take what is left.
template <int Blocks>
inline constexpr int kProductRows = [] {
  constexpr int kSums = kRegisters == 32 ? 24 : 8;
  int rows = 16;
  while (rows * Blocks * kVecsPerBlock > kSums) rows /= 2;
  return rows;
}();

template <int Rows, int Blocks>
void product_rows(const ProductTileArgs& args, std::int64_t row) {
  constexpr int kVecs = Blocks * kVecsPerBlock;
  Vec sums[Rows][kVecs]{};
  const std::ptrdiff_t row_stride = args.row_stride;
  const std::ptrdiff_t column_block = args.column_block;
  const float* values = args.rows + row * row_stride;
  const float* columns = args.columns;
#pragma GCC unroll 1
  for (std::int64_t k = 0; k < args.depth; ++k, values += args.row_step, columns += args.column_step) {
    Vec x[kVecs];
#pragma GCC unroll 4
    for (int block = 0; block < Blocks; ++block) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) {
        x[block * kVecsPerBlock + v] = load_unaligned(columns + block * column_block + v * kVecLanes);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Vec value = splat(values[r * row_stride]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sums[r][v] += value * x[v];
    }
  }
  float* out = args.out + row * args.out_stride;
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r, out += args.out_stride) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      float* const at = out + v * kVecLanes;
      const std::int64_t left = args.column_count - v * kVecLanes;
      if (left <= 0) break;
      Vec sum = sums[r][v] * args.scale;
      if (left >= kVecLanes) {
        if (args.adds) sum += load_unaligned(at);
        store_unaligned(at, sum);
      } else {
        const int lanes = static_cast<int>(left);
        if (args.adds) sum += load_lanes(at, lanes);
        store_lanes(at, sum, lanes);
      }
    }
  }
}

template <int Rows, int Blocks>
void product_rows_from(const ProductTileArgs& args, std::int64_t row) {
  for (; args.row_count - row >= Rows; row += Rows) product_rows<Rows, Blocks>(args, row);
  if constexpr (Rows > 1) product_rows_from<Rows / 2, Blocks>(args, row);
}

template <int Blocks = kMostProductBlocks>
void product_tile(const ProductTileArgs& args) {
  if constexpr (Blocks > 1) {
    if (args.column_count <= (Blocks - 1) * kBlock) return product_tile<Blocks - 1>(args);
  }
  product_rows_from<kProductRows<Blocks>, Blocks>(args, 0);
}

}  // namespace sift::cpu::SIFT_ISA
