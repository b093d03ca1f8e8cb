// Packed values of a few columns, each brought to the lane of its column.
#pragma once

#include <array>

#include "base/value_type.h"
#include "simd/packed/expansion.h"
#include "simd/packed/row_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX2__)

// As many floats as a register has lanes, of adjacent values.
template <ValueType Type>
[[gnu::always_inline]] inline Vec converted(const std::byte* at) {
#if defined(__AVX512F__)
  if constexpr (Type == ValueType::float32) {
    return reinterpret_cast<Vec>(_mm512_loadu_ps(at));
  } else if constexpr (Type == ValueType::int8) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return reinterpret_cast<Vec>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
  } else {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    if constexpr (Type == ValueType::float16) return reinterpret_cast<Vec>(_mm512_cvtph_ps(halves));
    return reinterpret_cast<Vec>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
#else
  if constexpr (Type == ValueType::float32) {
    return reinterpret_cast<Vec>(_mm256_loadu_ps(reinterpret_cast<const float*>(at)));
  } else if constexpr (Type == ValueType::int8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
    return reinterpret_cast<Vec>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
  } else {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    if constexpr (Type == ValueType::float16) return reinterpret_cast<Vec>(_mm256_cvtph_ps(halves));
    return reinterpret_cast<Vec>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
#endif
}

#if defined(__AVX512F__)
using ActiveLanes = __mmask16;

[[gnu::always_inline]] inline ActiveLanes active_lanes(std::uint32_t bits) { return static_cast<ActiveLanes>(bits); }
#else
// Eight lanes that are active or not, as the place of their entry in a table of all sets.
using ActiveLanes = std::uint32_t;
inline constexpr int kSetShift = 5;  // entries of 32 bytes

[[gnu::always_inline]] inline ActiveLanes active_lanes(std::uint32_t bits) { return bits << kSetShift; }

// For each set of lanes, what shuffles the next packed values to those that are active. Other lanes become zero: where
// bytes are shuffled, by indices with the highest bit, and of fp32 by the sign of the index.
template <ValueType Type>
struct SpreadTable {
  static constexpr std::size_t kBytes = bytes_of(Type);
  // From where on a value is in the four bytes of its lane; halves are next to each other.
  static constexpr std::size_t kLaneBytes = Type == ValueType::float16 ? kBytes : 4;
  static constexpr std::size_t kFirst = kLaneBytes - kBytes;
  alignas(64) std::array<std::array<std::uint8_t, 1U << kSetShift>, 1U << kVecLanes> sets{};

  constexpr SpreadTable() {
    for (std::size_t bits = 0; bits < sets.size(); ++bits) {
      std::uint8_t next = 0;
      for (std::size_t lane = 0; lane < kVecLanes; ++lane) {
        const bool is_active = (bits >> lane & 1U) != 0;
        for (std::size_t byte = 0; byte < kLaneBytes; ++byte) {
          std::uint8_t& entry = sets[bits][lane * kLaneBytes + byte];
          if (Type == ValueType::float32) {
            entry = !is_active ? 0x80 : byte == 0 ? next : 0;
          } else {
            entry = !is_active || byte < kFirst ? 0x80 : static_cast<std::uint8_t>(kBytes * next + byte - kFirst);
          }
        }
        if (is_active) ++next;
      }
    }
  }
};
template <ValueType Type>
inline constexpr SpreadTable<Type> kSpreadTable;
#endif

// A word of weights in parts of as many columns as a register has lanes.
struct WordParts {
  static constexpr int kCount = static_cast<int>(kWordColumns) / kVecLanes;
  ActiveLanes lanes[kCount];       // that are active
  std::size_t before[kCount + 1];  // values of the word before each part, and of all
};

// Values are counted from the begin of the word: added part by part, four additions wait for each other. And a mask
// takes longer out of a general register than out of another mask. (0.8 of the time of a row on Zen 5.)
[[gnu::always_inline]] inline WordParts parts_of(std::uint64_t bits) {
  WordParts parts;
#if defined(__AVX512F__)
  const __mmask64 all = _cvtu64_mask64(bits);
  parts.lanes[0] = static_cast<__mmask16>(all);
  parts.lanes[1] = static_cast<__mmask16>(_kshiftri_mask64(all, 16));
  parts.lanes[2] = static_cast<__mmask16>(_kshiftri_mask64(all, 32));
  parts.lanes[3] = static_cast<__mmask16>(_kshiftri_mask64(all, 48));
#endif
  parts.before[0] = 0;
#pragma GCC unroll 8
  for (int part = 0; part < WordParts::kCount; ++part) {
#if !defined(__AVX512F__)
    constexpr std::uint32_t kSets = 0xFFU << kSetShift;
    const std::uint64_t place = part == 0 ? bits << kSetShift : bits >> (part * kVecLanes - kSetShift);
    parts.lanes[part] = static_cast<std::uint32_t>(place) & kSets;
#endif
    const std::uint64_t through = bits << (kWordColumns - (part + 1) * kVecLanes);
    parts.before[part + 1] = static_cast<std::size_t>(__builtin_popcountll(through));
  }
  return parts;
}

// What expanded() is to be multiplied by. With AVX2, a byte stays at the top of its lane: that is 2^24 times its value.
template <ValueType Type>
inline constexpr float kExpandedUnit = Type == ValueType::int8 && kVecLanes == 8 ? 0x1p-24F : 1.0F;

// Lane i has the next of the values at `at` if it is active, and else zero.
template <ValueType Type>
[[gnu::always_inline]] inline Vec expanded(ActiveLanes active, const std::byte* at) {
#if defined(__AVX512F__)
  if constexpr (Type == ValueType::bfloat16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    const __m512i spread = expanded_lanes(active, _mm512_cvtepu16_epi32(halves));
    return reinterpret_cast<Vec>(_mm512_slli_epi32(spread, 16));
  } else {
    return reinterpret_cast<Vec>(expanded_lanes(active, reinterpret_cast<__m512>(converted<Type>(at))));
  }
#else
  const auto* const set = reinterpret_cast<const std::byte*>(&kSpreadTable<Type>) + active;
  const auto* const from = reinterpret_cast<const __m128i*>(at);
  if constexpr (Type == ValueType::float16) {
    const __m128i pattern = _mm_load_si128(reinterpret_cast<const __m128i*>(set));
    return reinterpret_cast<Vec>(_mm256_cvtph_ps(_mm_shuffle_epi8(_mm_loadu_si128(from), pattern)));
  } else {
    const __m256i pattern = _mm256_load_si256(reinterpret_cast<const __m256i*>(set));
    if constexpr (Type == ValueType::float32) {
      const __m256 spread = _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(converted<Type>(at)), pattern);
      return reinterpret_cast<Vec>(_mm256_blendv_ps(spread, _mm256_setzero_ps(), _mm256_castsi256_ps(pattern)));
    } else if constexpr (Type == ValueType::bfloat16) {
      return reinterpret_cast<Vec>(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(from)), pattern));
    } else {
      const __m256i spread = _mm256_shuffle_epi8(_mm256_broadcastq_epi64(_mm_loadl_epi64(from)), pattern);
      return reinterpret_cast<Vec>(_mm256_cvtepi32_ps(spread));
    }
  }
#endif
}

[[gnu::always_inline]] inline float lane_sum(Vec all) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(reinterpret_cast<__m512>(all));
#else
  const auto value = reinterpret_cast<__m256>(all);
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
#endif
}

// Adds the sum of the lanes of each of four vectors; `to` is aligned to 16 bytes.
[[gnu::always_inline]] inline void add_lane_sums(const Vec* four, float* to) {
#if defined(__AVX512F__)
  __m512 parts[4];
  for (int i = 0; i < 4; ++i) parts[i] = reinterpret_cast<__m512>(four[i]);
  const __m512 low = _mm512_add_ps(_mm512_unpacklo_ps(parts[0], parts[1]), _mm512_unpackhi_ps(parts[0], parts[1]));
  const __m512 high = _mm512_add_ps(_mm512_unpacklo_ps(parts[2], parts[3]), _mm512_unpackhi_ps(parts[2], parts[3]));
  const __m512d first = _mm512_unpacklo_pd(_mm512_castps_pd(low), _mm512_castps_pd(high));
  const __m512d second = _mm512_unpackhi_pd(_mm512_castps_pd(low), _mm512_castps_pd(high));
  const __m512 all = _mm512_add_ps(_mm512_castpd_ps(first), _mm512_castpd_ps(second));
  const __m256 half =
      _mm256_add_ps(_mm512_castps512_ps256(all), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1)));
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  _mm_store_ps(to, _mm_add_ps(_mm_load_ps(to), sums));
#else
  __m256 parts[4];
  for (int i = 0; i < 4; ++i) parts[i] = reinterpret_cast<__m256>(four[i]);
  const __m256 low = _mm256_add_ps(_mm256_unpacklo_ps(parts[0], parts[1]), _mm256_unpackhi_ps(parts[0], parts[1]));
  const __m256 high = _mm256_add_ps(_mm256_unpacklo_ps(parts[2], parts[3]), _mm256_unpackhi_ps(parts[2], parts[3]));
  const __m256d first = _mm256_unpacklo_pd(_mm256_castps_pd(low), _mm256_castps_pd(high));
  const __m256d second = _mm256_unpackhi_pd(_mm256_castps_pd(low), _mm256_castps_pd(high));
  const __m256 all = _mm256_add_ps(_mm256_castpd_ps(first), _mm256_castpd_ps(second));
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  _mm_store_ps(to, _mm_add_ps(_mm_load_ps(to), sums));
#endif
}

#endif

}  // namespace sift::cpu::SIFT_ISA
