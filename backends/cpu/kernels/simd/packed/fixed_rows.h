// Rows of int8 weights times one row of x as fixed-point numbers, whose columns are in the lanes.
#pragma once

#include <algorithm>
#include <cstring>

#include "simd/packed/fixed_group.h"
#include "simd/packed/fixed_operands.h"
#include "simd/packed/multiply.h"
#include "simd/packed/prefetch.h"

namespace sift::cpu::SIFT_ISA {

// The sums of four vectors' lanes.
[[gnu::always_inline]] inline __m128i sums_of(const __m512i (&from)[4]) {
  const __m512i low =
      _mm512_add_epi32(_mm512_unpacklo_epi32(from[0], from[1]), _mm512_unpackhi_epi32(from[0], from[1]));
  const __m512i high =
      _mm512_add_epi32(_mm512_unpacklo_epi32(from[2], from[3]), _mm512_unpackhi_epi32(from[2], from[3]));
  const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

template <int Limbs, bool Masked>
[[gnu::always_inline]] inline void multiply_fixed_row(const PackedRowsArgs& args, const std::byte* x, std::int64_t row,
                                                      double x_scale, int first_x) {
  const std::byte* value = args.values + args.starts[row];
  __m512i sums[4];
  for (auto& sum : sums) sum = _mm512_setzero_si512();
  for_each_word<Masked>(args, row, [&](std::int64_t word, std::uint64_t bits) __attribute__((always_inline)) {
    prefetch_values(args, value);
    const __m512i weights = spread_bytes<Masked>(bits, value);
    const std::byte* const operands = x + word * kFixedBytes<Limbs>;
#pragma GCC unroll 4
    for (int limb = 0; limb < Limbs; ++limb) {
      add_products(sums[limb], _mm512_load_si512(operands + 64 * limb), weights);
    }
  });
  const __m256d units = _mm256_setr_pd(1.0, 0x1p8, 0x1p16, 0x1p24);
  alignas(32) double parts[4];
  _mm256_store_pd(parts, _mm256_mul_pd(_mm256_cvtepi32_pd(sums_of(sums)), units));
  const double whole = ((parts[0] + parts[1]) + (parts[2] + parts[3])) - kFixedUnit<Limbs> * args.sums[row];
  finish(args, row, first_x, static_cast<float>(whole * x_scale));
}

// Rows of weights that one row of x is multiplied by together: they share what is loaded of it, and the ends of four
// rows, which are sums of lanes, take hardly longer than the end of one.
inline constexpr std::int64_t kFixedTogether = 4;

// Asks for what later rows have, in the order in which it lies in memory: one stream of values and one of masks, where
// rows that are multiplied together read one of each for every row.
template <bool Masked>
class FixedAhead {
 public:
  // What is asked for lies behind all of the rows that are multiplied together.
  [[gnu::always_inline]] FixedAhead(const PackedRowsArgs& args, std::int64_t row, std::int64_t rows)
      : into_level2_(args.into_level2), rows_(rows) {
    const auto own = static_cast<std::ptrdiff_t>(args.starts[row + rows] - args.starts[row]);
    values_ = args.values + args.starts[row] + std::max(own, kValuesAhead);
    bytes_ = own / ((args.words + kLineWords - 1) / kLineWords);
    if constexpr (Masked) masks_ = args.masks + row * args.words + std::max(rows * args.words, kMasksAhead);
  }

  // As much as the rows have in the words of one line of masks.
  [[gnu::always_inline]] void prefetch() {
    if constexpr (Masked) {
      prefetch_lines(masks_, rows_, into_level2_);
      masks_ += rows_ * kLineWords;
    }
    prefetch_lines(values_, (bytes_ + 63) / 64, into_level2_);
    values_ += bytes_;
  }

  // As much as the rows have in one word, into the second-level cache, where more lines may be under way: products of
  // several rows of x take longer than their weights take to come from there.
  [[gnu::always_inline]] void prefetch_word() {
    if constexpr (Masked) {
      prefetch_lines(masks_, (rows_ + kLineWords - 1) / kLineWords, true);
      masks_ += rows_;
    }
    const std::ptrdiff_t bytes = bytes_ / kLineWords;
    prefetch_lines(values_, (bytes + 63) / 64, true);
    values_ += bytes;
  }

 private:
  const bool into_level2_;
  const std::int64_t rows_;  // that are multiplied together
  const std::byte* values_;
  std::ptrdiff_t bytes_;
  const std::uint64_t* masks_ = nullptr;
};

template <int Limbs, bool Masked>
[[gnu::always_inline]] inline void multiply_fixed_four(const PackedRowsArgs& args, const std::byte* x, std::int64_t row,
                                                       double x_scale, int first_x) {
  const std::uint64_t* const masks = Masked ? args.masks + row * args.words : nullptr;
  const std::byte* values[kFixedTogether];
#pragma GCC unroll 4
  for (int r = 0; r < kFixedTogether; ++r) values[r] = args.values + args.starts[row + r];
  FixedAhead<Masked> ahead(args, row, kFixedTogether);
  __m512i sums[Limbs][kFixedTogether];
  for (auto& own : sums) {
    for (auto& sum : own) sum = _mm512_setzero_si512();
  }
  for (std::int64_t first = 0; first < args.words; first += kLineWords) {
    const std::int64_t end = std::min(first + kLineWords, args.words);
    ahead.prefetch();
#pragma GCC unroll 1
    for (std::int64_t word = first; word < end; ++word) {
      __m512i weights[kFixedTogether];
#pragma GCC unroll 4
      for (int r = 0; r < kFixedTogether; ++r) {
        const std::uint64_t bits = Masked ? masks[r * args.words + word] : ~std::uint64_t{0};
        weights[r] = spread_bytes<Masked>(bits, values[r]);
      }
      const std::byte* const operands = x + word * kFixedBytes<Limbs>;
#pragma GCC unroll 4
      for (int limb = 0; limb < Limbs; ++limb) {
        const __m512i operand = _mm512_load_si512(operands + 64 * limb);
#pragma GCC unroll 4
        for (int r = 0; r < kFixedTogether; ++r) {
          add_products(sums[limb][r], operand, weights[r]);
        }
      }
    }
  }
  __m256d parts[4];
  for (auto& part : parts) part = _mm256_setzero_pd();
#pragma GCC unroll 4
  for (int limb = 0; limb < Limbs; ++limb) {
    const __m256d unit = _mm256_set1_pd(static_cast<double>(std::int64_t{1} << (8 * limb)));
    parts[limb] = _mm256_mul_pd(_mm256_cvtepi32_pd(sums_of(sums[limb])), unit);
  }
  const __m256d all = _mm256_add_pd(_mm256_add_pd(parts[0], parts[1]), _mm256_add_pd(parts[2], parts[3]));
  const __m256d of_values = _mm256_cvtepi32_pd(_mm_loadu_si128(reinterpret_cast<const __m128i*>(args.sums + row)));
  const __m256d whole = _mm256_sub_pd(all, _mm256_mul_pd(_mm256_set1_pd(kFixedUnit<Limbs>), of_values));
  const __m128 products = _mm256_cvtpd_ps(_mm256_mul_pd(whole, _mm256_set1_pd(x_scale)));
  const __m128 scales = args.scales == nullptr ? _mm_set1_ps(1.0F) : _mm_loadu_ps(args.scales + row);
  alignas(16) float four[kFixedTogether];
  _mm_store_ps(four, _mm_fmadd_ps(scales, products, _mm_loadu_ps(args.bias + row)));
  float* const out = args.out + row * args.row_stride + first_x * args.x_stride;
#pragma GCC unroll 4
  for (int r = 0; r < kFixedTogether; ++r) out[r * args.row_stride] = four[r];
}

// One row of x.
template <int Limbs, bool Masked>
void multiply_fixed_one(const PackedRowsArgs& args, std::int64_t row_begin, std::int64_t row_end, int first) {
  const std::ptrdiff_t x_bytes = args.words * kWordColumns * static_cast<std::ptrdiff_t>(sizeof(float));
  const auto* const x = reinterpret_cast<const std::byte*>(args.x) + first * x_bytes;
  const auto x_scale = static_cast<double>(args.x_scales[first]);
  std::int64_t row = row_begin;
  for (; row + kFixedTogether <= row_end; row += kFixedTogether) {
    multiply_fixed_four<Limbs, Masked>(args, x, row, x_scale, first);
  }
  for (; row < row_end; ++row) multiply_fixed_row<Limbs, Masked>(args, x, row, x_scale, first);
}

}  // namespace sift::cpu::SIFT_ISA
