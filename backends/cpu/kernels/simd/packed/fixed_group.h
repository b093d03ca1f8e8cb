// Rows of int8 weights times a group of eight rows of x as fixed-point numbers.
//
// Rows of x are in the lanes: a vector has eight columns of each. Eight weights, which are expanded once, are repeated
// for all of them, so that sums need no addition of lanes but of two halves, and x is read once for some rows of
// weights: it may come from the second-level cache.
#pragma once

#include <algorithm>

#include "simd/packed/fixed_operands.h"
#include "simd/packed/prefetch.h"

namespace sift::cpu::SIFT_ISA {

// Rows of weights that are multiplied together: as many sums as hide the latency of a multiplication, and fit
// registers.
template <int Limbs>
inline constexpr int kFixedRows = Limbs == 3 ? 8 : 4;

// _mm512_dpbusd_epi32: of sums that it returns, compilers copy each in every turn of a loop.
[[gnu::always_inline]] inline void add_products(__m512i& sum, __m512i bytes, __m512i weights) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(weights));
}

template <bool Masked>
[[gnu::always_inline]] inline __m512i spread_bytes(std::uint64_t bits, const std::byte*& value) {
  const __m512i packed = _mm512_loadu_si512(value);
  value += Masked ? __builtin_popcountll(bits) : 64;
  return Masked ? _mm512_maskz_expand_epi8(bits, packed) : packed;
}

// What the integer sums of limbs are of a row of weights with each row of x; `sum` is that of the row's values.
template <int Limbs>
[[gnu::always_inline]] inline __m256 fixed_products(const __m512i (&limbs)[Limbs], std::int32_t sum, __m512d scales) {
  __m512d parts[4];
  parts[3] = _mm512_setzero_pd();
#pragma GCC unroll 4
  for (int limb = 0; limb < Limbs; ++limb) {
    const __m512i halves = _mm512_add_epi32(limbs[limb], _mm512_srli_epi64(limbs[limb], 32));
    parts[limb] = _mm512_mul_pd(_mm512_cvtepi32_pd(_mm512_cvtepi64_epi32(halves)),
                                _mm512_set1_pd(static_cast<double>(std::int64_t{1} << (8 * limb))));
  }
  const __m512d all = _mm512_add_pd(_mm512_add_pd(parts[0], parts[1]), _mm512_add_pd(parts[2], parts[3]));
  return _mm512_cvtpd_ps(_mm512_mul_pd(_mm512_sub_pd(all, _mm512_set1_pd(kFixedUnit<Limbs> * sum)), scales));
}

template <bool Masked, int Limbs, int Rows>
[[gnu::always_inline]] inline void multiply_fixed_rows(const PackedRowsArgs& args, const std::byte* x, std::int64_t row,
                                                       __m512d x_scales, int first) {
  const std::uint64_t* const masks = Masked ? args.masks + row * args.words : nullptr;
  const std::byte* values[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) values[r] = args.values + args.starts[row + r];
  const std::ptrdiff_t ahead = static_cast<std::ptrdiff_t>(args.starts[row + Rows] - args.starts[row]);
  __m512i sums[Rows][Limbs];
  for (auto& own : sums) {
    for (auto& sum : own) sum = _mm512_setzero_si512();
  }
  alignas(64) std::int64_t weights[Rows][kWordColumns / kFixedColumns];
#pragma GCC unroll 1
  for (std::int64_t word = 0; word < args.words; ++word) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      prefetch_lines(values[r] + ahead, args.lines_per_word);
      const std::uint64_t bits = Masked ? masks[r * args.words + word] : ~std::uint64_t{0};
      _mm512_store_si512(weights[r], spread_bytes<Masked>(bits, values[r]));
    }
    // Read again as memory: taken out of a register, each would be a shuffle, which the multiplications leave no port
    // for.
    __asm__("" : "+m"(weights));
    const std::byte* const operands = x + word * kFixedGroupBytes<Limbs>;
#pragma GCC unroll 8
    for (int eight = 0; eight < static_cast<int>(kWordColumns / kFixedColumns); ++eight) {
      __m512i own[Limbs];
#pragma GCC unroll 4
      for (int limb = 0; limb < Limbs; ++limb) own[limb] = _mm512_load_si512(operands + (eight * Limbs + limb) * 64);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const __m512i repeated = _mm512_set1_epi64(weights[r][eight]);
#pragma GCC unroll 4
        for (int limb = 0; limb < Limbs; ++limb) {
          add_products(sums[r][limb], own[limb], repeated);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    alignas(32) float whole[kRowsOfGroup];
    _mm256_store_ps(whole, fixed_products<Limbs>(sums[r], args.sums[row + r], x_scales));
    const float scale = args.scales == nullptr ? 1.0F : args.scales[row + r];
    float* const out = args.out + (row + r) * args.row_stride + first * args.x_stride;
    for (int i = 0; i < kRowsOfGroup; ++i) out[i * args.x_stride] = args.bias[row + r] + scale * whole[i];
  }
}

template <bool Masked, int Limbs>
void multiply_fixed_group(const PackedRowsArgs& args, std::int64_t row_begin, std::int64_t row_end, int first) {
  const auto* const x = reinterpret_cast<const std::byte*>(args.x + first * args.words * kWordColumns);
  const __m512d x_scales = _mm512_cvtps_pd(_mm256_loadu_ps(args.x_scales + first));
  std::int64_t row = row_begin;
  constexpr int kTogether = kFixedRows<Limbs>;
  for (; row + kTogether <= row_end; row += kTogether) {
    multiply_fixed_rows<Masked, Limbs, kTogether>(args, x, row, x_scales, first);
  }
  for (; row < row_end; ++row) multiply_fixed_rows<Masked, Limbs, 1>(args, x, row, x_scales, first);
}

}  // namespace sift::cpu::SIFT_ISA
