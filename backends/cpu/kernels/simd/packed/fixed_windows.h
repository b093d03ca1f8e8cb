// Blocks of sixteen rows of int8 weights in windows of columns times few rows of x as fixed-point numbers.
//
// A register holds a byte of each of the window's 64 columns, so that one instruction looks 64 weights' activations up
// (VBMI), and another adds the products of four of them to a lane.
#pragma once

#include <algorithm>

#include "simd/packed/fixed_group.h"
#include "simd/packed/fixed_operands.h"
#include "simd/packed/multiply_windows.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512VBMI__)

// Bytes from a limb of a row of x to its next, and from a row to the next. An odd number of lines, where rows have room
// for it: the same window of all limbs and rows would otherwise often be in few sets of the first-level cache, 24 lines
// in two of them where there are 2048 columns.
template <int Limbs>
struct Planes {
  explicit Planes(std::int64_t words) {
    constexpr auto kRoom = static_cast<std::int64_t>(sizeof(float));
    const std::int64_t odd = words | 1;
    const bool is_odd = Limbs * odd <= kRoom * words;
    limb = (is_odd ? odd : words) * kWordColumns;
    row = is_odd ? Limbs * limb : kRoom * limb;
  }

  std::int64_t limb;
  std::int64_t row;
};

// Of each row of x its bytes one after the other, [limbs][words][64]: a window may begin within a word.
template <int Limbs>
inline void fix_planes(const OperandArgs& args, const float* largest) {
  const Planes<Limbs> planes(args.words);
  for (int row = 0; row < args.rows; ++row) {
    const float* const from = args.from + row * args.columns;
    const __m512 factor = fixed_factor<Limbs>(args, row, largest[row]);
    auto* const to = reinterpret_cast<std::byte*>(args.x) + row * planes.row;
    for (std::int64_t column = 0; column < args.words * kWordColumns; column += kWordColumns) {
      alignas(64) std::byte own[kFixedBytes<Limbs>];
      fix_word<Limbs>(from + column, args.columns - column, factor, own);
#pragma GCC unroll 4
      for (int limb = 0; limb < Limbs; ++limb) {
        __builtin_memcpy(to + limb * planes.limb + column, own + limb * kWordColumns, kWordColumns);
      }
    }
  }
}

// For int8 weights of up to kMostFixedColumns columns.
inline OperandForm fixed_window_operands(const OperandArgs& args) {
  float largest[kMostRows];
  const Magnitudes found = find_largest(args, largest);
  if (!found.finite) {
    place_rows(args, false);
    return OperandForm::unbounded;
  }
  switch (found.bytes) {
    case 2: fix_planes<2>(args, largest); return OperandForm::windowed16;
    case 3: fix_planes<3>(args, largest); return OperandForm::windowed24;
    default: fix_planes<4>(args, largest); return OperandForm::windowed32;
  }
}

// Half of the lanes of the sums of limbs, without what was added to the numbers of x.
template <int Limbs>
[[gnu::always_inline]] inline __m256 fixed_half(const __m512i (&limbs)[Limbs], int half, __m256i sums, double x_scale) {
  const auto lanes = [&](__m512i all) __attribute__((always_inline)) {
    return half == 0 ? _mm512_castsi512_si256(all) : _mm512_extracti64x4_epi64(all, 1);
  };
  __m512d whole = _mm512_mul_pd(_mm512_cvtepi32_pd(sums), _mm512_set1_pd(-kFixedUnit<Limbs>));
#pragma GCC unroll 4
  for (int limb = 0; limb < Limbs; ++limb) {
    const __m512d unit = _mm512_set1_pd(static_cast<double>(std::int64_t{1} << (8 * limb)));
    whole = _mm512_fmadd_pd(_mm512_cvtepi32_pd(lanes(limbs[limb])), unit, whole);
  }
  return _mm512_cvtpd_ps(_mm512_mul_pd(whole, _mm512_set1_pd(x_scale)));
}

// Rows `first` to before `first + Rows` of x; the last ones of them may not be there.
template <int Limbs, int Rows>
[[gnu::always_inline]] inline void multiply_fixed_block(const PackedRowsArgs& args, std::int64_t block, int first) {
  constexpr ValueType kType = ValueType::int8;
  const std::size_t begin = args.windows.starts[block];
  const std::size_t end = args.windows.starts[block + 1];
  const std::byte* stop = args.windows.stops + static_cast<std::int64_t>(begin) * stop_bytes(kType);
  const Planes<Limbs> planes(args.words);
  const std::byte* x[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    x[r] = reinterpret_cast<const std::byte*>(args.x) + std::min(first + r, args.x_rows - 1) * planes.row;
  }
  __m512i sums[Rows][Limbs];
  for (auto& own : sums) {
    for (auto& sum : own) sum = _mm512_setzero_si512();
  }
  WindowBases bases(args.windows, begin);
#pragma GCC unroll 1
  for (std::size_t i = begin; i < end; ++i, stop += stop_bytes(kType)) {
    prefetch_stop<kType>(stop, i);
    const std::int64_t base = bases.next();
    const __m512i places = _mm512_loadu_si512(stop);
    const __m512i weights = _mm512_loadu_si512(stop + stop_weights(kType));
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int limb = 0; limb < Limbs; ++limb) {
        const __m512i window = _mm512_loadu_si512(x[r] + limb * planes.limb + base);
        add_products(sums[r][limb], _mm512_permutexvar_epi8(places, window), weights);
      }
    }
  }
  const std::int64_t row = block * kWindowRows;
  const std::int64_t rows = std::min(kWindowRows, args.row_end - row);
  const auto there = static_cast<__mmask16>((1U << rows) - 1U);
  const __m512i of_values = _mm512_maskz_loadu_epi32(there, args.sums + row);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    if (first + r >= args.x_rows) break;
    const auto x_scale = static_cast<double>(args.x_scales[first + r]);
    const __m256 lower = fixed_half<Limbs>(sums[r], 0, _mm512_castsi512_si256(of_values), x_scale);
    const __m256 upper = fixed_half<Limbs>(sums[r], 1, _mm512_extracti64x4_epi64(of_values, 1), x_scale);
    const __m512 products = _mm512_insertf32x8(_mm512_castps256_ps512(lower), upper, 1);
    finish_lanes(args, row, rows, first + r, products);
  }
}

// A block is taken for all rows of x before the next.
template <int Limbs>
void multiply_fixed_windows(const PackedRowsArgs& args) {
  // The sums of eight rows of four limbs are more than there are registers.
  constexpr int kMost = Limbs == 4 ? 4 : 8;
  for (std::int64_t row = args.row_begin; row < args.row_end; row += kWindowRows) {
    const std::int64_t block = row / kWindowRows;
    for (int first = 0; first < args.x_rows;) {
      const int group = std::min(next_group_rows(args.x_rows - first), kMost);
      switch (group) {
        case 1: multiply_fixed_block<Limbs, 1>(args, block, first); break;
        case 2: multiply_fixed_block<Limbs, 2>(args, block, first); break;
        case 4: multiply_fixed_block<Limbs, 4>(args, block, first); break;
        default: multiply_fixed_block<Limbs, kMost>(args, block, first); break;
      }
      first += group;
    }
  }
}

#endif

}  // namespace sift::cpu::SIFT_ISA
