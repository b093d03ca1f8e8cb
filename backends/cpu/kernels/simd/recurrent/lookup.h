// Sixteen sparse rows times one x, which each lane looks up in registers.
#pragma once

#include "simd/recurrent/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512F__)

void lookup_rows(LookupArgs args);
void lookup_rows(LookupArgs args) {
  // The last of the 32 values that places can name is zero.
  constexpr __mmask16 kUpper = 0x7FFF;
  __m512 sums[kLookupSlots] = {_mm512_loadu_ps(args.bias), _mm512_setzero_ps(), _mm512_setzero_ps(),
                               _mm512_setzero_ps()};
  const float* values = args.values;
  for (std::int64_t group = 0; group < args.groups; ++group, values += kLookupSlots * kBlock) {
    const float* const x = args.x + args.columns[group];
    const __m512 low = _mm512_loadu_ps(x);
    const __m512 high = _mm512_maskz_loadu_ps(kUpper, x + kBlock);
    __m512i places = _mm512_load_si512(args.places + group * kBlock);
#pragma GCC unroll 4
    for (int slot = 0; slot < kLookupSlots; ++slot, places = _mm512_srli_epi32(places, 8)) {
      const __m512 operands = _mm512_permutex2var_ps(low, places, high);
      sums[slot] = _mm512_fmadd_ps(_mm512_load_ps(values + slot * kBlock), operands, sums[slot]);
    }
  }
  const __m512 sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
  _mm512_mask_storeu_ps(args.out, static_cast<__mmask16>((1U << args.rows) - 1), sum);
}

#endif

}  // namespace sift::cpu::SIFT_ISA
