// Vectors of 32-bit words of the instruction set that the including file is compiled for, in its own namespace.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(SIFT_NEON)
#include <arm_neon.h>
#endif

#ifndef SIFT_ISA
#error "define SIFT_ISA, the namespace, before including a kernel template"
#endif

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512VNNI__)
inline constexpr int kWordBytes = 64;
inline constexpr int kTileBlocks = 12;  // blocks whose sums are in registers
#elif defined(__AVX2__)
inline constexpr int kWordBytes = 32;
inline constexpr int kTileBlocks = 4;
#elif defined(SIFT_NEON)
inline constexpr int kWordBytes = 16;
inline constexpr int kTileBlocks = 6;
#else
inline constexpr int kWordBytes = 16;
inline constexpr int kTileBlocks = 2;
#endif
inline constexpr int kWordLanes = kWordBytes / 4;
inline constexpr int kWordVecs = 16 / kWordLanes;  // of a block

typedef std::int32_t Ints __attribute__((vector_size(kWordBytes), may_alias));
typedef std::uint32_t Words __attribute__((vector_size(kWordBytes), may_alias));
typedef float Floats __attribute__((vector_size(kWordBytes), may_alias));
typedef float UnalignedFloats __attribute__((vector_size(kWordBytes), aligned(4), may_alias));

#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
// Two products, of up to 255 each, in 16 bits.
inline constexpr int kMostWeight = 64;
#else
inline constexpr int kMostWeight = 128;
#endif

#if defined(SIFT_NEON) && !defined(__ARM_FEATURE_MATMUL_INT8)
// Both factors are signed: dot() takes 128 off the operand, and what that takes off the sums is added once for all
// blocks.
inline constexpr int kOperandShift = 128;
#else
inline constexpr int kOperandShift = 0;
#endif

// sums + the products of four adjacent bytes, u8 of `operand` and s8 of `weights`, exactly; weights are up to
// kMostWeight. kOperandShift is taken off each operand.
[[gnu::always_inline]] inline Ints dot(Ints sums, Words operand, Words weights) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(operand),
                                                    reinterpret_cast<__m512i>(weights)));
#elif defined(__AVXVNNI__)
  return reinterpret_cast<Ints>(_mm256_dpbusd_avx_epi32(
      reinterpret_cast<__m256i>(sums), reinterpret_cast<__m256i>(operand), reinterpret_cast<__m256i>(weights)));
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_maddubs_epi16(reinterpret_cast<__m256i>(operand), reinterpret_cast<__m256i>(weights));
  return sums + reinterpret_cast<Ints>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(__SSE2__)
  // Adding two products in 16 bits would saturate: even and odd bytes are widened.
  const auto x = reinterpret_cast<__m128i>(operand);
  const auto w = reinterpret_cast<__m128i>(weights);
  const __m128i even = _mm_madd_epi16(_mm_and_si128(x, _mm_set1_epi16(0xff)), _mm_srai_epi16(_mm_slli_epi16(w, 8), 8));
  const __m128i odd = _mm_madd_epi16(_mm_srli_epi16(x, 8), _mm_srai_epi16(w, 8));
  return sums + reinterpret_cast<Ints>(even) + reinterpret_cast<Ints>(odd);
#elif defined(SIFT_NEON)
  const auto w = reinterpret_cast<int8x16_t>(weights);
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return reinterpret_cast<Ints>(
      vusdotq_s32(reinterpret_cast<int32x4_t>(sums), reinterpret_cast<uint8x16_t>(operand), w));
#else
  const auto x = reinterpret_cast<int8x16_t>(operand ^ 0x80808080U);
#if defined(__ARM_FEATURE_DOTPROD)
  return reinterpret_cast<Ints>(vdotq_s32(reinterpret_cast<int32x4_t>(sums), x, w));
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(w)));
  const int32x4_t high = vpaddlq_s16(vmull_high_s8(x, w));
  return sums + reinterpret_cast<Ints>(vpaddq_s32(low, high));
#endif
#endif
#else
  for (int shift = 0; shift < 32; shift += 8) {
    const auto x = reinterpret_cast<Ints>(operand >> shift & 0xffU);
    sums += x * (reinterpret_cast<Ints>(weights << (24 - shift)) >> 24);
  }
  return sums;
#endif
}

// sum + the four weights of each lane.
[[gnu::always_inline]] inline Ints add_weights(Ints sum, Words weights) {
#if defined(SIFT_NEON)
  return reinterpret_cast<Ints>(
      vpadalq_s16(reinterpret_cast<int32x4_t>(sum), vpaddlq_s8(reinterpret_cast<int8x16_t>(weights))));
#else
  for (int shift = 0; shift < 32; shift += 8) sum += reinterpret_cast<Ints>(weights << (24 - shift)) >> 24;
  return sum;
#endif
}

// a b + c, rounded once.
[[gnu::always_inline]] inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__AVX2__)
  return reinterpret_cast<Floats>(
      _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(SIFT_NEON)
  return reinterpret_cast<Floats>(
      vfmaq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a), reinterpret_cast<float32x4_t>(b)));
#else
  Floats result;
  for (int lane = 0; lane < kWordLanes; ++lane) result[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
  return result;
#endif
}

[[gnu::always_inline]] inline Words splat(std::uint32_t value) { return value - Words{}; }
[[gnu::always_inline]] inline Floats splat(float value) { return value - Floats{}; }
[[gnu::always_inline]] inline Floats to_floats(Ints values) { return __builtin_convertvector(values, Floats); }

// NaN becomes `low`.
[[gnu::always_inline]] inline Floats clamp(Floats value, Floats low, Floats high) {
  value = value > low ? value : low;
  return value < high ? value : high;
}

// Half to even; magnitudes are up to 2^22.
[[gnu::always_inline]] inline Ints round_to_ints(Floats value) {
#if defined(__AVX512F__)
  return reinterpret_cast<Ints>(_mm512_cvtps_epi32(reinterpret_cast<__m512>(value)));
#elif defined(__AVX2__)
  return reinterpret_cast<Ints>(_mm256_cvtps_epi32(reinterpret_cast<__m256>(value)));
#elif defined(__SSE2__)
  return reinterpret_cast<Ints>(_mm_cvtps_epi32(reinterpret_cast<__m128>(value)));
#elif defined(SIFT_NEON)
  return reinterpret_cast<Ints>(vcvtnq_s32_f32(reinterpret_cast<float32x4_t>(value)));
#else
  // 1.5 2^23: the sum has no bits for fractions left.
  constexpr float kRounding = 12582912.0F;
  return reinterpret_cast<Ints>(value + kRounding) - reinterpret_cast<Ints>(splat(kRounding));
#endif
}

// Whether the magnitude of a lane is more than `bound`.
[[gnu::always_inline]] inline bool is_any_beyond(Floats value, float bound) {
  const auto magnitude = reinterpret_cast<Floats>(reinterpret_cast<Words>(value) & 0x7fffffffU);
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(magnitude), _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(reinterpret_cast<__m256>(magnitude > splat(bound))) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_ps(reinterpret_cast<__m128>(magnitude > splat(bound))) != 0;
#elif defined(SIFT_NEON)
  return vmaxvq_u32(reinterpret_cast<uint32x4_t>(magnitude > splat(bound))) != 0;
#else
  bool is_beyond = false;
  for (int lane = 0; lane < kWordLanes; ++lane) is_beyond |= magnitude[lane] > bound;
  return is_beyond;
#endif
}

[[gnu::always_inline]] inline Words load_words(const void* at) { return *static_cast<const Words*>(at); }
[[gnu::always_inline]] inline void store_words(void* at, Words value) { *static_cast<Words*>(at) = value; }

}  // namespace sift::cpu::SIFT_ISA
