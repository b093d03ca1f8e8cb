// Sixteen sparse rows times a few rows of x, which each lane looks up in registers.
#pragma once

#include "simd/recurrent/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512F__)

template <int Rows>
void lookup_some(const LookupArgs& args) {
  // The last of the 32 values that places can name is zero.
  constexpr __mmask16 kUpper = 0x7FFF;
  // One for each slot: they hide the latency of an addition, and are the same for any number of rows.
  __m512 sums[Rows][kLookupSlots];
  for (auto& own : sums) {
    for (auto& sum : own) sum = _mm512_setzero_ps();
    own[0] = _mm512_loadu_ps(args.bias);
  }
  const float* values = args.values;
  for (std::int64_t group = 0; group < args.groups; ++group, values += kLookupSlots * kBlock) {
    const float* const x = args.x + args.columns[group];
    __m512 low[Rows];
    __m512 high[Rows];
#pragma GCC unroll 4
    for (int row = 0; row < Rows; ++row) {
      low[row] = _mm512_loadu_ps(x + row * args.x_stride);
      high[row] = _mm512_maskz_loadu_ps(kUpper, x + row * args.x_stride + kBlock);
    }
    __m512i places = _mm512_load_si512(args.places + group * kBlock);
#pragma GCC unroll 4
    for (int slot = 0; slot < kLookupSlots; ++slot, places = _mm512_srli_epi32(places, 8)) {
      const __m512 value = _mm512_load_ps(values + slot * kBlock);
#pragma GCC unroll 4
      for (int row = 0; row < Rows; ++row) {
        __m512& sum = sums[row][slot];
        sum = _mm512_fmadd_ps(value, _mm512_permutex2var_ps(low[row], places, high[row]), sum);
      }
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < Rows; ++row) {
    const __m512 sum =
        _mm512_add_ps(_mm512_add_ps(sums[row][0], sums[row][1]), _mm512_add_ps(sums[row][2], sums[row][3]));
    _mm512_mask_storeu_ps(args.out + row * args.out_stride, static_cast<__mmask16>((1U << args.rows) - 1), sum);
  }
}

void lookup_rows(LookupArgs args);
void lookup_rows(LookupArgs args) {
  switch (args.x_rows) {
    case 1: return lookup_some<1>(args);
    case 2: return lookup_some<2>(args);
    case 3: return lookup_some<3>(args);
    default: return lookup_some<4>(args);
  }
}

#endif

}  // namespace sift::cpu::SIFT_ISA
