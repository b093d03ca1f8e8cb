// Copying input lanes into a panel.
#pragma once

#include "../kernel_table.h"
#include "vec.h"

namespace sift::cpu::SIFT_ISA {

template <int Width>
[[gnu::always_inline]] inline void copy_lanes(float* target, const float* source) {
  __builtin_memcpy(target, source, Width * sizeof(float));
}

// The even lanes of 2 Width floats.
template <int Width>
[[gnu::always_inline]] inline void copy_even_lanes(float* target, const float* source) {
#pragma GCC unroll 16
  for (int lane = 0; lane < Width; ++lane) target[lane] = source[2 * lane];
}

#if defined(__AVX512F__)
template <>
[[gnu::always_inline]] inline void copy_even_lanes<16>(float* target, const float* source) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  // The last float of the pair of vectors may lie past the tensor: only 31 are read.
  const __m512 low = _mm512_loadu_ps(source);
  const __m512 high = _mm512_maskz_loadu_ps(0x7fff, source + 16);
  _mm512_store_ps(target, _mm512_permutex2var_ps(low, even, high));
}
#endif

template <int Width>
[[gnu::always_inline]] inline void copy_masked_lanes(float* target, const float* source, std::uint32_t mask) {
#if defined(__AVX512VL__)
  if constexpr (Width == 16) {
    _mm512_store_ps(target, _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), source));
  } else if constexpr (Width == 8) {
    _mm256_store_ps(target, _mm256_maskz_loadu_ps(static_cast<__mmask8>(mask), source));
  } else {
    _mm_store_ps(target, _mm_maskz_loadu_ps(static_cast<__mmask8>(mask), source));
  }
#else
  for (int lane = 0; lane < Width; ++lane) target[lane] = (mask >> lane) & 1U ? source[lane] : 0.0F;
#endif
}

template <int Width>
void gather_full_of_width(const GatherArgs& args) {
  const float* source = args.source;
  float* target = args.target;
  for (std::uint32_t channel = 0; channel < args.channels; ++channel) {
    if (args.lane_stride == 1) {
      for (std::uint32_t e = 0; e < args.count; ++e) {
        copy_lanes<Width>(target + args.entries[e].target, source + args.entries[e].source);
      }
    } else if (args.lane_stride == 2) {
      for (std::uint32_t e = 0; e < args.count; ++e) {
        copy_even_lanes<Width>(target + args.entries[e].target, source + args.entries[e].source);
      }
    } else {
      for (std::uint32_t e = 0; e < args.count; ++e) {
        for (int lane = 0; lane < Width; ++lane) {
          target[args.entries[e].target + static_cast<std::uint32_t>(lane)] =
              source[args.entries[e].source + lane * static_cast<std::ptrdiff_t>(args.lane_stride)];
        }
      }
    }
    source += args.source_stride;
    target += args.target_stride;
  }
}

template <int Width>
void gather_masked_of_width(const GatherArgs& args) {
  const float* source = args.source;
  float* target = args.target;
  for (std::uint32_t channel = 0; channel < args.channels; ++channel) {
    for (std::uint32_t e = 0; e < args.count; ++e) {
      const Gather& entry = args.entries[e];
      if (args.lane_stride == 1) {
        copy_masked_lanes<Width>(target + entry.target, source + entry.source, entry.mask);
      } else {
        for (int lane = 0; lane < Width; ++lane) {
          target[entry.target + static_cast<std::uint32_t>(lane)] =
              (entry.mask >> lane) & 1U
                  ? source[entry.source + lane * static_cast<std::ptrdiff_t>(args.lane_stride)]
                  : 0.0F;
        }
      }
    }
    source += args.source_stride;
    target += args.target_stride;
  }
}

inline void gather_full(const GatherArgs& args) {
  if (args.width == 16) return gather_full_of_width<16>(args);
  if (args.width == 8) return gather_full_of_width<8>(args);
  return gather_full_of_width<4>(args);
}

inline void gather_masked(const GatherArgs& args) {
  if (args.width == 16) return gather_masked_of_width<16>(args);
  if (args.width == 8) return gather_masked_of_width<8>(args);
  return gather_masked_of_width<4>(args);
}

}  // namespace sift::cpu::SIFT_ISA
