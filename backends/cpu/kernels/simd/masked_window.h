// Windows that are read from planes in place: for each tap, a mask has the lanes of a block whose operand is inside.
#pragma once

#include "simd/activation.h"
#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512F__)
template <ActivationKind Kind>
struct MaskedWindow {
  static void run(WindowKind window, MaskedWindowArgs args) {
    if (window == WindowKind::maximum) {
      blocks_of<WindowKind::maximum>(args);
    } else {
      blocks_of<WindowKind::weighted_sum>(args);
    }
  }

  template <WindowKind Of>
  [[gnu::always_inline]] static void blocks_of(const MaskedWindowArgs& args) {
    std::uint32_t block = 0;
    for (; block + 4 <= args.blocks; block += 4) some_blocks<Of, 4>(args, block);
    if (block + 2 <= args.blocks) {
      some_blocks<Of, 2>(args, block);
      block += 2;
    }
    if (block < args.blocks) some_blocks<Of, 1>(args, block);
  }

  template <WindowKind Of, int Blocks>
  [[gnu::always_inline]] static void some_blocks(const MaskedWindowArgs& args, std::uint32_t block) {
    const __m512 outside = _mm512_set1_ps(args.outside);
    __m512 sums[Blocks];
#pragma GCC unroll 4
    for (__m512& sum : sums) sum = _mm512_set1_ps(args.start);
    const float* const in = args.in + block * std::ptrdiff_t{kBlock};
    for (std::uint32_t i = 0; i < args.tap_count; ++i) {
      const std::uint32_t tap = args.active == nullptr ? i : args.active[i];
      const float* const from = in + args.window[tap];
      const std::uint16_t* const masks = args.masks + tap * std::size_t{args.blocks} + block;
      __m512 weight{};
      if constexpr (Of == WindowKind::weighted_sum) weight = _mm512_set1_ps(args.weights[i]);
#pragma GCC unroll 4
      for (int k = 0; k < Blocks; ++k) {
        const __m512 x = _mm512_mask_loadu_ps(outside, masks[k], from + k * kBlock);
        sums[k] = Of == WindowKind::maximum ? _mm512_max_ps(sums[k], x) : _mm512_fmadd_ps(weight, x, sums[k]);
      }
    }
    float* const out = args.out + block * std::ptrdiff_t{kBlock};
#pragma GCC unroll 4
    for (int k = 0; k < Blocks; ++k) {
      const Vec value = activate<Kind>(reinterpret_cast<Vec>(sums[k]), args.activation.a, args.activation.b);
      if (block + static_cast<std::uint32_t>(k) + 1 == args.blocks) {
        store_lanes(out + k * kBlock, value, static_cast<int>(args.last_lanes));
      } else {
        store_unaligned(out + k * kBlock, value);
      }
    }
  }
};

inline void masked_window(WindowKind kind, MaskedWindowArgs args) {
  with_activation<MaskedWindow>(args.activation.kind, kind, args);
}
inline constexpr auto kMaskedWindow = &masked_window;
#else
inline constexpr void (*kMaskedWindow)(WindowKind, MaskedWindowArgs) = nullptr;
#endif

}  // namespace sift::cpu::SIFT_ISA
