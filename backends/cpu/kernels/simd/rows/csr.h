// Sparse rows times a tile: a list of non-zeros for each row, or three lists for two rows.
#pragma once

#include "simd/kernel_table.h"
#include "simd/rows/offsets.h"
#include "simd/rows/tile.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

template <typename Sums>
void rows_csr(const RowsArgs& args) {
  const std::byte* const panel = args.panel;
  const std::ptrdiff_t pitch = args.pitch;
  const std::uint16_t* offset = args.offsets + args.starts[args.row_begin];
  const float* value = args.values + args.starts[args.row_begin];
  float* acc = args.acc;
  for (std::uint32_t row = args.row_begin; row < args.row_end; ++row, acc += Sums::kFloats) {
    const std::uint16_t* const end = args.offsets + args.starts[row + 1];
    Sums sums;
    sums.start(args.bias, row, acc);
    for_each_weight<1>(panel, offset, value, end, [&](int, const float* weight, const std::byte* operands) {
      sums.multiply_add(*weight, operands, pitch);
    });
    sums.finish(args, row - args.row_begin);
  }
}

// A few weights of a row at a time, each with its own sums, for tiles in which the sums of one weight are too few to
// keep the multipliers busy: the next multiply-add of a sum has to wait for the previous one.
template <typename Sums, int Together>
void rows_csr_apart(const RowsArgs& args) {
  const std::byte* const panel = args.panel;
  const std::ptrdiff_t pitch = args.pitch;
  const std::uint16_t* offset = args.offsets + args.starts[args.row_begin];
  const float* value = args.values + args.starts[args.row_begin];
  float* acc = args.acc;
  for (std::uint32_t row = args.row_begin; row < args.row_end; ++row, acc += Sums::kFloats) {
    const std::uint16_t* const end = args.offsets + args.starts[row + 1];
    Sums sums[Together];
    sums[0].start(args.bias, row, acc);
#pragma GCC unroll 8
    for (int i = 1; i < Together; ++i) sums[i].clear();
    for_each_weight<1>(panel, offset, value, end, [&](int i, const float* weight, const std::byte* operands) {
      sums[i % Together].multiply_add(*weight, operands, pitch);
    });
#pragma GCC unroll 8
    for (int i = 1; i < Together; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < Sums::kVecs; ++v) sums[0].vec[v] += sums[i].vec[v];
    }
    sums[0].finish(args, row - args.row_begin);
  }
}

// Two rows at a time: an operand that both rows use is loaded once. This is faster from a density of about 20 % on,
// where a list per row is limited by the rate of loads.
template <int Rows, int Cols>
void rows_csr_pairs(const RowsArgs& args) {
  using Sums = Tile<Rows, Cols>;
  const std::byte* const panel = args.panel;
  const std::ptrdiff_t pitch = args.pitch;
  float* acc = args.acc;
  for (std::uint32_t row = args.row_begin; row < args.row_end; row += 2, acc += 2 * Sums::kVecs * kVecLanes) {
    float* const second_acc = acc + Sums::kVecs * kVecLanes;
    const std::uint32_t* const starts = args.starts + row / 2 * 3;
    const std::uint16_t* offset = args.offsets + starts[0];
    const float* value = args.values + args.value_starts[row / 2];
    Sums first;
    Sums second;
    first.start(args.bias, row, acc);
    second.start(args.bias, row + 1, second_acc);
    const std::uint16_t* end = args.offsets + starts[1];
    for_each_weight<2>(panel, offset, value, end, [&](int, const float* weights, const std::byte* operands) {
      const Vec first_weight = splat(weights[0]);
      const Vec second_weight = splat(weights[1]);
      for_each_vec<Rows, Cols>(operands, pitch, [&](int v, Vec x) {
        first.vec[v] += first_weight * x;
        second.vec[v] += second_weight * x;
      });
    });
    end = args.offsets + starts[2];
    for_each_weight<1>(panel, offset, value, end, [&](int, const float* weight, const std::byte* operands) {
      first.multiply_add(*weight, operands, pitch);
    });
    first.finish(args, row - args.row_begin);
    end = args.offsets + starts[3];
    for_each_weight<1>(panel, offset, value, end, [&](int, const float* weight, const std::byte* operands) {
      second.multiply_add(*weight, operands, pitch);
    });
    second.finish(args, row + 1 - args.row_begin);
  }
}

}  // namespace sift::cpu::SIFT_ISA
