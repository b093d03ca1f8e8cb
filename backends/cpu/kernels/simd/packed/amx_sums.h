// What tiles of integer sums become.
#pragma once

#include <algorithm>

#include "simd/packed/amx_tiles.h"
#include "simd/packed/fixed_operands.h"
#include "simd/reorder.h"

namespace sift::cpu::SIFT_ISA {

// Sums that may be read behind the last one.
inline constexpr int kSumSlack = kRowsOfGroup;

// A row of weights with eight rows of x; what is behind the last of these means nothing. `sums` are limb by limb, a sum
// for each row of x.
template <int Limbs>
[[gnu::always_inline]] inline __m256 finished_sums(const PackedRowsArgs& args, std::int64_t row,
                                                   const std::int32_t* sums, __m512d x_scales) {
  __m512d whole = _mm512_set1_pd(-kFixedUnit<Limbs> * args.sums[row]);
#pragma GCC unroll 4
  for (int limb = 0; limb < Limbs; ++limb) {
    const auto* const own = reinterpret_cast<const __m256i*>(sums + limb * args.x_rows);
    const __m512d unit = _mm512_set1_pd(static_cast<double>(std::int64_t{1} << (8 * limb)));
    whole = _mm512_fmadd_pd(_mm512_cvtepi32_pd(_mm256_loadu_si256(own)), unit, whole);
  }
  const __m256 products = _mm512_cvtpd_ps(_mm512_mul_pd(whole, x_scales));
  const __m256 scale = _mm256_set1_ps(args.scales == nullptr ? 1.0F : args.scales[row]);
  return _mm256_fmadd_ps(scale, products, _mm256_set1_ps(args.bias[row]));
}

// Of up to sixteen rows of weights, `step` sums apart, with up to sixteen rows of x.
template <int Limbs>
[[gnu::always_inline]] inline void finish_sums(const PackedRowsArgs& args, std::int64_t row, int count,
                                               const std::int32_t* sums, std::ptrdiff_t step) {
  const auto is_there = static_cast<__mmask16>((1U << args.x_rows) - 1U);
  const __m512 x_scales = _mm512_maskz_loadu_ps(is_there, args.x_scales);
  const __m512d lower_scales = _mm512_cvtps_pd(_mm512_castps512_ps256(x_scales));
  const __m512d upper_scales = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x_scales, 1));
  // Stored whole, since a load does not find two halves before they are in the cache.
  alignas(64) float results[kTileRows][kMostRows];
  if (args.x_rows <= kRowsOfGroup) {
    for (int r = 0; r < count; ++r) {
      const __m256 own = finished_sums<Limbs>(args, row + r, sums + r * step, lower_scales);
      _mm512_store_ps(results[r], _mm512_castps256_ps512(own));
    }
  } else {
    for (int r = 0; r < count; ++r) {
      const std::int32_t* const own = sums + r * step;
      const __m256 lower = finished_sums<Limbs>(args, row + r, own, lower_scales);
      const __m256 upper = finished_sums<Limbs>(args, row + r, own + kRowsOfGroup, upper_scales);
      _mm512_store_ps(results[r], _mm512_insertf32x8(_mm512_castps256_ps512(lower), upper, 1));
    }
  }
  float* const out = args.out + row * args.row_stride;
  if (args.x_stride == 1) {
    for (int r = 0; r < count; ++r) {
      _mm512_mask_storeu_ps(out + r * args.row_stride, is_there, _mm512_load_ps(results[r]));
    }
    return;
  }
  // The rows of weights side by side: theirs are next to each other then.
  __m512 block[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) block[r] = _mm512_load_ps(results[r]);
  transpose_block(block);
  const auto rows = static_cast<__mmask16>((1U << count) - 1U);
#pragma GCC unroll 16
  for (int i = 0; i < kMostRows; ++i) {
    if (i < args.x_rows) _mm512_mask_storeu_ps(out + i * args.x_stride, rows, block[i]);
  }
}

}  // namespace sift::cpu::SIFT_ISA
