// Products of two computed matrices of each of sixteen images, which lie in the lanes.
#pragma once

#include "simd/vec.h"
#include "simd/views/kernel_table.h"

namespace sift::cpu::SIFT_ISA {

// Sums that the registers hold, besides the operands of a k. Both are powers of two.
inline constexpr int kLaneRows = kRegisters == 32 ? 4 : 2;
inline constexpr int kLaneColumns = 4;

template <int Rows, int Columns>
void lane_sums(const LaneProductArgs& args, std::int64_t row, std::int64_t column) {
  const std::ptrdiff_t row_stride = args.row_stride;
  const std::ptrdiff_t column_stride = args.column_stride;
  for (int v = 0; v < kVecsPerBlock; ++v) {
    const float* values = args.rows + row * row_stride + v * kVecLanes;
    const float* columns = args.columns + column * column_stride + v * kVecLanes;
    Vec sums[Rows][Columns]{};
#pragma GCC unroll 1
    for (std::int64_t k = 0; k < args.depth; ++k, values += args.row_step, columns += args.column_step) {
      Vec x[Columns];
#pragma GCC unroll 4
      for (int c = 0; c < Columns; ++c) x[c] = loaded(columns + c * column_stride);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const Vec value = load(values + r * row_stride);
#pragma GCC unroll 4
        for (int c = 0; c < Columns; ++c) sums[r][c] += value * x[c];
      }
    }
    float* out = args.out + row * args.out_stride + column * kBlock + v * kVecLanes;
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r, out += args.out_stride) {
#pragma GCC unroll 4
      for (int c = 0; c < Columns; ++c) {
        float* const at = out + c * kBlock;
        const Vec sum = sums[r][c] * args.scale;
        store(at, args.adds ? load(at) + sum : sum);
      }
    }
  }
}

template <int Rows, int Columns = kLaneColumns>
void lane_columns(const LaneProductArgs& args, std::int64_t row, std::int64_t column = 0) {
  for (; args.column_count - column >= Columns; column += Columns) lane_sums<Rows, Columns>(args, row, column);
  if constexpr (Columns > 1) lane_columns<Rows, Columns / 2>(args, row, column);
}

template <int Rows = kLaneRows>
void lane_rows(const LaneProductArgs& args, std::int64_t row = 0) {
  for (; args.row_count - row >= Rows; row += Rows) lane_columns<Rows>(args, row);
  if constexpr (Rows > 1) lane_rows<Rows / 2>(args, row);
}

inline void lane_product(const LaneProductArgs& args) { lane_rows(args); }

}  // namespace sift::cpu::SIFT_ISA
