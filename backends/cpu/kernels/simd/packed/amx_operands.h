// Rows of x as tiles of bytes: fixed-point numbers, whose bytes are columns of a tile by themselves.
#pragma once

#include <algorithm>

#include "simd/packed/amx_tiles.h"
#include "simd/packed/fixed_operands.h"
#include "simd/packed/wide.h"
#include "simd/reorder.h"

namespace sift::cpu::SIFT_ISA {

// Tiles that a word of `rows` rows of x takes.
inline int tiles_of(int rows, int limbs) { return (rows * limbs + kTileLanes - 1) / kTileLanes; }

inline bool is_in_tiles(OperandForm form) {
  return form == OperandForm::tiles16 || form == OperandForm::tiles24 || form == OperandForm::tiles32;
}

inline int limbs_of(OperandForm form) {
  return form == OperandForm::tiles16 ? 2 : form == OperandForm::tiles24 ? 3 : 4;
}

// [words][16][tiles][16][4]: of every four columns of a word, each limb of each row, limbs one after the other. A row
// of a tile is next to that of the next tile, so that rows of x may cross from one to the next.
template <int Limbs>
inline void fix_tiles(const OperandArgs& args, const float* largest) {
  const std::ptrdiff_t step = tiles_of(args.rows, Limbs) * kTileRowBytes;
  __m512 factors[kMostRows];
  for (int row = 0; row < kMostRows; ++row) {
    factors[row] = row < args.rows ? fixed_factor<Limbs>(args, row, largest[row]) : _mm512_setzero_ps();
  }
  const auto rows = static_cast<__mmask16>((1U << args.rows) - 1U);
  const __m512i offset = _mm512_set1_epi32(1 << kFixedBits<Limbs>);
  const __m512i most = _mm512_set1_epi32(kMostFixed<Limbs>);
  // Of four columns side by side, their lowest bytes, then those above.
  const __m512i by_limb = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  auto* to = reinterpret_cast<std::byte*>(args.x);
  for (std::int64_t column = 0; column < args.words * kWordColumns; column += kBlock, to += 4 * step) {
    __m512 block[kBlock];
#pragma GCC unroll 16
    for (int row = 0; row < kBlock; ++row) {
      if (row >= args.rows) {
        block[row] = _mm512_setzero_ps();
        continue;
      }
      const __m512 own = some_columns(args.from + row * args.columns + column, args.columns - column);
      __m512i fixed = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(own, factors[row])), offset);
      if constexpr (Limbs < 4) fixed = _mm512_min_epi32(fixed, most);
      block[row] = _mm512_castsi512_ps(_mm512_shuffle_epi8(fixed, by_limb));
    }
    transpose_block(block);
#pragma GCC unroll 16
    for (int i = 0; i < kBlock; ++i) {
      const int limb = i % 4;
      if (limb < Limbs) {
        _mm512_mask_storeu_ps(to + i / 4 * step + limb * args.rows * sizeof(float), rows, block[i]);
      }
    }
  }
}

// One row of x takes no longer as vectors.
inline OperandForm amx_operands(const OperandArgs& args) {
  const bool is_fixed = args.type == ValueType::int8 && args.group_columns == 0 && args.columns <= kMostFixedColumns;
  if (args.rows == 1 || !is_fixed || args.lists || args.windows) return wide_operands(args);
  float largest[kMostRows];
  const Magnitudes found = find_largest(args, largest);
  if (!found.finite) return wide_operands(args);
  switch (found.bytes) {
    case 2: fix_tiles<2>(args, largest); return OperandForm::tiles16;
    case 3: fix_tiles<3>(args, largest); return OperandForm::tiles24;
    default: fix_tiles<4>(args, largest); return OperandForm::tiles32;
  }
}

}  // namespace sift::cpu::SIFT_ISA
