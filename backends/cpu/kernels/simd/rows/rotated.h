// Sparse rows times a panel that holds every pixel once: taps along x read the same operands and rotate their lanes.
//
// Loads are the limit, and a shuffle runs in parallel with them. Without a copy of the input for each tap, a panel
// holds three times as many channels, so lists are longer, and sums are loaded and stored less often.
#pragma once

#include "simd/kernel_table.h"
#include "simd/rows/offsets.h"
#include "simd/rows/tile.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512F__)
template <int Cols>
void rows_rotated(const RowsArgs& args) {
  using Sums = Tile<1, Cols>;
  const std::byte* const panel = args.panel;
  const std::uint32_t* ends = args.starts + std::size_t{args.row_begin} * args.lists_per_row;
  const std::uint16_t* offset = args.offsets + *ends;
  const float* value = args.values + *ends;
  float* acc = args.acc;
  for (std::uint32_t row = args.row_begin; row < args.row_end; ++row, acc += Sums::kVecs * kVecLanes) {
    Sums sums;
    sums.start(args.bias, row, acc);
    // The first tap is not rotated.
    const std::uint16_t* end = args.offsets + *++ends;
    for_each_weight<1>(panel, offset, value, end, [&](int, const float* weight, const std::byte* operands) {
      sums.multiply_add(*weight, operands, 0);
    });
#pragma GCC unroll 1
    for (std::uint32_t list = 1; list < args.lists_per_row; ++list) {
      const __m512i lanes = _mm512_loadu_si512(args.rotated_lanes + list * kBlock);
      end = args.offsets + *++ends;
      for_each_weight<1>(panel, offset, value, end, [&](int, const float* tap, const std::byte* operands) {
        const Vec weight = splat(*tap);
        for_each_vec<1, Cols>(operands, 0, [&](int v, Vec x) {
          sums.vec[v] += weight * reinterpret_cast<Vec>(_mm512_permutexvar_ps(lanes, reinterpret_cast<__m512>(x)));
        });
      });
    }
    sums.store_to(acc);
  }
}

template <int Cols = 1>
RowsFunction find_rotated_rows_from(int columns) {
  if (columns == Cols) return &rows_rotated<Cols>;
  if constexpr (Cols < 14) {
    return find_rotated_rows_from<Cols + 1>(columns);
  } else {
    return nullptr;
  }
}

inline RowsFunction find_rotated_rows(int columns) { return find_rotated_rows_from(columns); }
#else
// A block is several vectors here, and rotating its lanes would take two shuffles for each.
inline RowsFunction find_rotated_rows(int) { return nullptr; }
#endif

}  // namespace sift::cpu::SIFT_ISA
