// Windows of stride two along x that are read from planes in place: of 32 neighbouring pixels, every other one is an
// operand of a block.
#pragma once

#include "simd/activation.h"
#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512F__)
template <ActivationKind Kind>
struct StridedWindow {
  static void run(StridedWindowArgs args) {
    for (std::uint32_t block = 0; block < args.blocks; ++block) {
      std::uint32_t row = 0;
      for (; row + 4 <= args.rows; row += 4) some_rows<4>(args, block, row);
      if (row + 2 <= args.rows) {
        some_rows<2>(args, block, row);
        row += 2;
      }
      if (row < args.rows) some_rows<1>(args, block, row);
    }
  }

  // Rows share masks and weights.
  template <int Rows>
  [[gnu::always_inline]] static void some_rows(const StridedWindowArgs& args, std::uint32_t block, std::uint32_t row) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512 sums[Rows];
#pragma GCC unroll 4
    for (__m512& sum : sums) sum = _mm512_set1_ps(args.start);
    const float* const in = args.in + row * args.row_step + block * std::ptrdiff_t{2 * kBlock};
    for (std::uint32_t i = 0; i < args.tap_count; ++i) {
      const std::uint32_t tap = args.active[i];
      const float* from = in + args.window[tap];
      const std::uint16_t* const masks = args.masks + (tap * std::size_t{args.blocks} + block) * 2;
      const __m512 weight = _mm512_set1_ps(args.weights[i]);
#pragma GCC unroll 4
      for (int k = 0; k < Rows; ++k, from += args.row_step) {
        const __m512 first = _mm512_maskz_loadu_ps(masks[0], from);
        const __m512 second = _mm512_maskz_loadu_ps(masks[1], from + kBlock);
        sums[k] = _mm512_fmadd_ps(weight, _mm512_permutex2var_ps(first, even, second), sums[k]);
      }
    }
    float* out = args.out + row * args.out_row_step + block * std::ptrdiff_t{kBlock};
    const int lanes = block + 1 == args.blocks ? static_cast<int>(args.last_lanes) : kBlock;
#pragma GCC unroll 4
    for (int k = 0; k < Rows; ++k, out += args.out_row_step) {
      store_lanes(out, activate<Kind>(reinterpret_cast<Vec>(sums[k]), args.activation.a, args.activation.b), lanes);
    }
  }
};

// Two neighbouring taps of a row read the same pixels: one the even ones of 32, the other the odd ones. The maxima of
// columns come first, so that only these are taken apart.
template <int Rows>
[[gnu::always_inline]] inline void strided_maxima(const StridedMaximumArgs& args, std::uint32_t block,
                                                  std::uint32_t row) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  const __m512 outside = _mm512_set1_ps(args.start);
  const float* const in = args.in + row * args.row_step + block * std::ptrdiff_t{2 * kBlock};
  __m512 most[Rows];
#pragma GCC unroll 4
  for (__m512& own : most) own = outside;
  for (std::uint32_t column = 0; column < args.columns; column += 2) {
    const std::uint16_t* const masks = args.masks + (column * std::size_t{args.blocks} + block) * 2;
    __m512 first[Rows];
    __m512 second[Rows];
#pragma GCC unroll 4
    for (int k = 0; k < Rows; ++k) first[k] = second[k] = outside;
    for (std::uint32_t tap_row = 0; tap_row < args.tap_rows; ++tap_row) {
      const float* from = in + args.window[tap_row * args.columns + column];
#pragma GCC unroll 4
      for (int k = 0; k < Rows; ++k, from += args.row_step) {
        first[k] = _mm512_max_ps(first[k], _mm512_mask_loadu_ps(outside, masks[0], from));
        second[k] = _mm512_max_ps(second[k], _mm512_mask_loadu_ps(outside, masks[1], from + kBlock));
      }
    }
    const bool has_odd = column + 1 < args.columns;
#pragma GCC unroll 4
    for (int k = 0; k < Rows; ++k) {
      most[k] = _mm512_max_ps(most[k], _mm512_permutex2var_ps(first[k], even, second[k]));
      if (has_odd) most[k] = _mm512_max_ps(most[k], _mm512_permutex2var_ps(first[k], odd, second[k]));
    }
  }
  float* out = args.out + row * args.out_row_step + block * std::ptrdiff_t{kBlock};
  const int lanes = block + 1 == args.blocks ? static_cast<int>(args.last_lanes) : kBlock;
#pragma GCC unroll 4
  for (int k = 0; k < Rows; ++k, out += args.out_row_step) store_lanes(out, reinterpret_cast<Vec>(most[k]), lanes);
}

inline void strided_maximum(StridedMaximumArgs args) {
  for (std::uint32_t block = 0; block < args.blocks; ++block) {
    std::uint32_t row = 0;
    for (; row + 4 <= args.rows; row += 4) strided_maxima<4>(args, block, row);
    if (row + 2 <= args.rows) {
      strided_maxima<2>(args, block, row);
      row += 2;
    }
    if (row < args.rows) strided_maxima<1>(args, block, row);
  }
}
inline constexpr auto kStridedMaximum = &strided_maximum;

inline void strided_window(StridedWindowArgs args) { with_activation<StridedWindow>(args.activation.kind, args); }
inline constexpr auto kStridedWindow = &strided_window;
#else
inline constexpr void (*kStridedWindow)(StridedWindowArgs) = nullptr;
inline constexpr void (*kStridedMaximum)(StridedMaximumArgs) = nullptr;
#endif

}  // namespace sift::cpu::SIFT_ISA
