// Expansion and compression of lanes that do not wait for what their register held before.
#pragma once

#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512F__)

// Zeros that the compiler takes for any value. With zeros that it knows, a merge becomes an instruction that zeroes
// what its mask leaves out; on Zen 5 such an expansion or compression waits for the last result in the same register, 5
// cycles instead of 1.
[[gnu::always_inline]] inline __m512i zeros_to_merge_into() {
  __m512i zeros = _mm512_setzero_si512();
  __asm__("" : "+v"(zeros));
  return zeros;
}

// Lane i has the next of the values if bit i is set, and else zero.
[[gnu::always_inline]] inline __m512 expanded_lanes(__mmask16 bits, __m512 values) {
  return _mm512_mask_expand_ps(_mm512_castsi512_ps(zeros_to_merge_into()), bits, values);
}

[[gnu::always_inline]] inline __m512i expanded_lanes(__mmask16 bits, __m512i values) {
  return _mm512_mask_expand_epi32(zeros_to_merge_into(), bits, values);
}

#if defined(__AVX512VBMI2__)
[[gnu::always_inline]] inline __m512i expanded_words(__mmask32 bits, __m512i values) {
  return _mm512_mask_expand_epi16(zeros_to_merge_into(), bits, values);
}

// The bytes whose bits are set, one after the other, and zeros behind them.
[[gnu::always_inline]] inline __m512i compressed_bytes(__mmask64 bits, __m512i values) {
  return _mm512_mask_compress_epi8(zeros_to_merge_into(), bits, values);
}
#endif

#endif

}  // namespace sift::cpu::SIFT_ISA
