// Rows of int8 weights times a group of two, four or eight rows of x as fixed-point numbers.
//
// Rows of x are in the lanes: a vector has 64 columns of them all, eight of each of eight rows. As many weights, which
// are expanded once, are repeated for all of them, so that sums need few additions of lanes, and x is read once for
// some rows of weights: it may come from the second-level cache.
#pragma once

#include <algorithm>

#include "simd/packed/fixed_operands.h"
#include "simd/packed/prefetch.h"
#include "simd/packed/spread_bytes.h"

namespace sift::cpu::SIFT_ISA {

// Rows of weights that are multiplied together: as many sums as hide the latency of a multiplication, and fit
// registers.
template <int Limbs>
inline constexpr int kFixedRows = Limbs == 4 ? 4 : 8;

// _mm512_dpbusd_epi32: of sums that it returns, compilers copy each in every turn of a loop.
[[gnu::always_inline]] inline void add_products(__m512i& sum, __m512i bytes, __m512i weights) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(weights));
}

// As many weights as a group has columns of a row side by side, for each of its rows.
template <int Group>
[[gnu::always_inline]] inline __m512i repeated_weights(const std::byte* weights) {
  if constexpr (Group == 8) {
    std::int64_t eight;
    __builtin_memcpy(&eight, weights, sizeof eight);
    return _mm512_set1_epi64(eight);
  } else if constexpr (Group == 4) {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(weights)));
  } else {
    return _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(weights)));
  }
}

// The sum of each row's lanes, in the order of rows; what is behind them means nothing.
template <int Group>
[[gnu::always_inline]] inline __m512d row_sums(__m512i lanes) {
  if constexpr (Group == 2) lanes = _mm512_add_epi32(lanes, _mm512_shuffle_i64x2(lanes, lanes, 0b10'11'00'01));
  if constexpr (Group <= 4) lanes = _mm512_add_epi32(lanes, _mm512_shuffle_epi32(lanes, _MM_PERM_BADC));
  lanes = _mm512_add_epi32(lanes, _mm512_srli_epi64(lanes, 32));
  constexpr int kStep = 16 / Group;
  const auto of_row = [](int row) { return row < Group ? row * kStep : 0; };
  const __m256i first =
      _mm256_setr_epi32(of_row(0), of_row(1), of_row(2), of_row(3), of_row(4), of_row(5), of_row(6), of_row(7));
  const __m512i ordered = _mm512_permutexvar_epi32(_mm512_castsi256_si512(first), lanes);
  return _mm512_cvtepi32_pd(_mm512_castsi512_si256(ordered));
}

// What the integer sums of limbs are of a row of weights with each row of x; `sum` is that of the row's values.
template <int Group, int Limbs>
[[gnu::always_inline]] inline __m256 fixed_products(const __m512i (&limbs)[Limbs], std::int32_t sum, __m512d scales) {
  __m512d parts[4];
  for (auto& part : parts) part = _mm512_setzero_pd();
#pragma GCC unroll 4
  for (int limb = 0; limb < Limbs; ++limb) {
    parts[limb] =
        _mm512_mul_pd(row_sums<Group>(limbs[limb]), _mm512_set1_pd(static_cast<double>(std::int64_t{1} << (8 * limb))));
  }
  const __m512d all = _mm512_add_pd(_mm512_add_pd(parts[0], parts[1]), _mm512_add_pd(parts[2], parts[3]));
  return _mm512_cvtpd_ps(_mm512_mul_pd(_mm512_sub_pd(all, _mm512_set1_pd(kFixedUnit<Limbs> * sum)), scales));
}

template <bool Masked, int Limbs, int Group, int Rows>
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
  // Of one word and of the next: what is stored takes a while until it can be read again.
  alignas(64) std::byte weights[2][Rows][kWordColumns];
  const auto spread = [&](std::int64_t word, int r) __attribute__((always_inline)) {
    const std::uint64_t bits = Masked ? masks[r * args.words + word] : ~std::uint64_t{0};
    _mm512_store_si512(weights[word & 1][r], spread_bytes<Masked>(bits, values[r]));
  };
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) spread(0, r);
  for (std::int64_t begin = 0; begin < args.words; begin += kLineWords) {
    const std::int64_t end = std::min(begin + kLineWords, args.words);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      if constexpr (Masked) prefetch_lines(masks + (r + Rows) * args.words + begin, 1, args.into_level2);
      prefetch_lines(values[r] + ahead, args.lines_per_block, args.into_level2);
    }
#pragma GCC unroll 1
    for (std::int64_t word = begin; word < end; ++word) {
      // Read again as memory: taken out of a register, each part would be a shuffle, which the multiplications leave no
      // port for.
      __asm__("" : "+m"(weights));
      const auto& own_weights = weights[word & 1];
      const std::byte* const operands = x + word * Group * kFixedBytes<Limbs>;
#pragma GCC unroll 8
      for (int part = 0; part < Group; ++part) {
        __m512i own[Limbs];
#pragma GCC unroll 4
        for (int limb = 0; limb < Limbs; ++limb) own[limb] = _mm512_load_si512(operands + (part * Limbs + limb) * 64);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
          const __m512i repeated = repeated_weights<Group>(own_weights[r] + part * (kWordColumns / Group));
#pragma GCC unroll 4
          for (int limb = 0; limb < Limbs; ++limb) {
            add_products(sums[r][limb], own[limb], repeated);
          }
        }
        if (word + 1 < args.words) {
#pragma GCC unroll 8
          for (int r = part * Rows / Group; r < (part + 1) * Rows / Group; ++r) spread(word + 1, r);
        }
      }
    }
  }
  const int kept = std::min(Group, args.x_rows - first);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    alignas(32) float whole[8];
    _mm256_store_ps(whole, fixed_products<Group, Limbs>(sums[r], args.sums[row + r], x_scales));
    const float scale = args.scales == nullptr ? 1.0F : args.scales[row + r];
    float* const out = args.out + (row + r) * args.row_stride + first * args.x_stride;
    for (int i = 0; i < kept; ++i) out[i * args.x_stride] = args.bias[row + r] + scale * whole[i];
  }
}

// The rows of x from `first` on; the last ones of the group may not be there.
template <int Limbs, bool Masked, int Group>
void multiply_fixed_group(const PackedRowsArgs& args, std::int64_t row_begin, std::int64_t row_end, int first) {
  const auto* const x = reinterpret_cast<const std::byte*>(args.x + first * args.words * kWordColumns);
  const __m512d x_scales = _mm512_cvtps_pd(_mm256_loadu_ps(args.x_scales + first));
  std::int64_t row = row_begin;
  constexpr int kTogether = kFixedRows<Limbs>;
  for (; row + kTogether <= row_end; row += kTogether) {
    multiply_fixed_rows<Masked, Limbs, Group, kTogether>(args, x, row, x_scales, first);
  }
  for (; row < row_end; ++row) multiply_fixed_rows<Masked, Limbs, Group, 1>(args, x, row, x_scales, first);
}

}  // namespace sift::cpu::SIFT_ISA
