// Packed bytes of a word of 64 columns, each brought to its column.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

#if !defined(__AVX512VBMI2__)

// For each column how many of `bits` are set up to it within its 16 columns, less one: which of their values it has,
// if its own bit is set. Shifts within 8 columns do not take the port that shuffles need.
[[gnu::always_inline]] inline __m512i value_places(std::uint64_t bits) {
  const __m512i none = _mm512_set4_epi32(0, 0, 0, 0xFF);
  const __m512i one = _mm512_set4_epi32(0x01010101, 0x01010101, 0x01010101, 0x01010100);
  __m512i places = _mm512_mask_blend_epi8(bits, none, one);
  places = _mm512_add_epi8(places, _mm512_slli_epi64(places, 8));
  places = _mm512_add_epi8(places, _mm512_slli_epi64(places, 16));
  places = _mm512_add_epi8(places, _mm512_slli_epi64(places, 32));
  // The last of the lower 8 columns is added to the upper ones.
  const __m512i upper = _mm512_set4_epi32(0x07070707, 0x07070707, -1, -1);
  return _mm512_add_epi8(places, _mm512_shuffle_epi8(places, upper));
}

[[gnu::always_inline]] inline __m512i expanded_bytes(std::uint64_t bits, const std::byte* value) {
  const auto sixteen = [&](unsigned columns_before) {
    const std::uint64_t before = bits & ((std::uint64_t{1} << columns_before) - 1U);
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(value + __builtin_popcountll(before)));
  };
  __m512i packed = _mm512_castsi128_si512(sixteen(0));
  packed = _mm512_inserti32x4(packed, sixteen(16), 1);
  packed = _mm512_inserti32x4(packed, sixteen(32), 2);
  packed = _mm512_inserti32x4(packed, sixteen(48), 3);
  return _mm512_maskz_shuffle_epi8(bits, packed, value_places(bits));
}

#else

[[gnu::always_inline]] inline __m512i expanded_bytes(std::uint64_t bits, const std::byte* value) {
  return _mm512_maskz_expand_epi8(bits, _mm512_loadu_si512(value));
}

#endif

// Column i has the next of the values at `value` if bit i is set, and else zero. `value` becomes the next word's.
template <bool Masked>
[[gnu::always_inline]] inline __m512i spread_bytes(std::uint64_t bits, const std::byte*& value) {
  const std::byte* const first = value;
  value += Masked ? __builtin_popcountll(bits) : 64;
  return Masked ? expanded_bytes(bits, first) : _mm512_loadu_si512(first);
}

}  // namespace sift::cpu::SIFT_ISA
