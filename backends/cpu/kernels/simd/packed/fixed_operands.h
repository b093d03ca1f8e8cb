// Rows of x for weights of 8 and 16 bits: fixed-point numbers, or floats in the order in which values come out of their
// bytes.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd/packed/operands.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512VBMI2__)
inline constexpr bool kSpreadsHalves = true;
#else
// Without an instruction that spreads values of 16 bits, they are spread as floats.
inline constexpr bool kSpreadsHalves = false;
#endif

// Bits of the largest magnitude, of numbers of 2, 3 and 4 bytes; the top of those of 4 is no longer needed.
template <int Limbs>
inline constexpr int kFixedBits = Limbs == 4 ? 30 : 8 * Limbs - 1;
// What numbers are at most, of 2 and 3 bytes: the largest may be rounded up.
template <int Limbs>
inline constexpr std::int32_t kMostFixed = static_cast<std::int32_t>((std::int64_t{2} << kFixedBits<Limbs>)-1);
// What is added to numbers, lest they are negative.
template <int Limbs>
inline constexpr double kFixedUnit = static_cast<double>(1 << kFixedBits<Limbs>);
// An integer sum of more products of bytes could run over.
inline constexpr std::int64_t kMostFixedColumns = 65536;
// Bytes of a word of a row of x as fixed-point numbers.
template <int Limbs>
inline constexpr std::int64_t kFixedBytes = Limbs * kWordColumns;
// How many times the mean magnitude the largest number of a row is at most. Rounding to 3 bytes then loses at most
// 2^-16 of that mean, and to 2 bytes 2^-11, as fp16 loses of a number of that magnitude. A mean of squares would hide a
// single number that is far above the others, whose weight may be pruned.
inline constexpr float kMostOverMean = 64;
inline constexpr float kMostOverMeanOfTwo = 32;

// A word of x from columns one after the other to lanes as values come out of dwords: of Parts values each, the upper
// one first. Of rows from `first` on.
template <int Parts, bool UpperFirst>
inline void shuffle_words(const OperandArgs& args, int first) {
  constexpr int kColumns = Parts * 16;
  const std::int64_t x_floats = args.words * kWordColumns;
  for (std::int64_t at = first * x_floats; at < args.rows * x_floats; at += kColumns) {
    float* const x = args.x + at;
    float shuffled[kColumns];
    for (int part = 0; part < Parts; ++part) {
      const int place = UpperFirst ? Parts - 1 - part : part;
      for (int lane = 0; lane < 16; ++lane) shuffled[part * 16 + lane] = x[lane * Parts + place];
    }
    __builtin_memcpy(x, shuffled, sizeof shuffled);
  }
}

// 64 columns become `Limbs` times 64 bytes.
template <int Limbs>
[[gnu::always_inline]] inline void fix_word(const float* from, std::int64_t left, __m512 factor, std::byte* to) {
  const __m512i offset = _mm512_set1_epi32(1 << kFixedBits<Limbs>);
  const __m512i most = _mm512_set1_epi32(kMostFixed<Limbs>);
  __m512i parts[4];
#pragma GCC unroll 4
  for (int part = 0; part < 4; ++part) {
    const __m512 scaled = _mm512_mul_ps(some_columns(from + 16 * part, left - 16 * part), factor);
    parts[part] = _mm512_add_epi32(_mm512_cvtps_epi32(scaled), offset);
    if constexpr (Limbs < 4) parts[part] = _mm512_min_epi32(parts[part], most);
  }
  auto* const bytes = reinterpret_cast<__m128i*>(to);
#pragma GCC unroll 4
  for (int limb = 0; limb < Limbs; ++limb) {
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      _mm_store_si128(bytes + 4 * limb + part, _mm512_cvtepi32_epi8(parts[part]));
      parts[part] = _mm512_srli_epi32(parts[part], 8);
    }
  }
}

struct Magnitudes {
  bool finite;  // no number is infinite or NaN
  int bytes;    // of fixed-point numbers that are exact enough for all rows
};

// The largest magnitude of each row of x, and what that means for fixed-point numbers.
inline Magnitudes find_largest(const OperandArgs& args, float* largest) {
  constexpr std::uint32_t kInfinity = 0x7F800000U;
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  Magnitudes found{true, args.two_bytes ? 2 : 3};
  for (int row = 0; row < args.rows; ++row) {
    const float* const from = args.from + row * args.columns;
    __m512i most = _mm512_setzero_si512();
    __m512 sums = _mm512_setzero_ps();
    for (std::int64_t i = 0; i < args.columns; i += 16) {
      const __m512 own = some_columns(from + i, args.columns - i);
      // Patterns are ordered as magnitudes are, with what is infinite or NaN above all others.
      const __m512i bits = _mm512_and_si512(_mm512_castps_si512(own), magnitude);
      most = _mm512_max_epu32(most, bits);
      sums = _mm512_add_ps(sums, _mm512_castsi512_ps(bits));
    }
    const std::uint32_t top = _mm512_reduce_max_epu32(most);
    found.finite &= top < kInfinity;
    __builtin_memcpy(largest + row, &top, sizeof top);
    const float sum = _mm512_reduce_add_ps(sums);
    const float all = largest[row] * static_cast<float>(args.columns);
    if (!(all <= kMostOverMean * sum)) {
      found.bytes = 4;
    } else if (!(all <= kMostOverMeanOfTwo * sum)) {
      found.bytes = std::max(found.bytes, 3);
    }
  }
  return found;
}

// What a row is multiplied by; `args.scales` gets the inverse.
template <int Limbs>
inline __m512 fixed_factor(const OperandArgs& args, int row, float largest) {
  if constexpr (Limbs == 2) {
    // A power of two would use as little as half of the range. What is below has no inverse that is a float.
    if (largest >= 0x1p-100F) {
      constexpr auto kMost = static_cast<float>(kFixedUnit<2> - 1);
      args.scales[row] = largest / kMost;
      return _mm512_set1_ps(kMost / largest);
    }
  }
  int exponent = 0;
  std::frexp(largest, &exponent);
  const int shift = std::min(kFixedBits<Limbs> - exponent, 126);
  args.scales[row] = std::ldexp(1.0F, -shift);
  return _mm512_set1_ps(std::ldexp(1.0F, shift));
}

// [words][limbs][64]
template <int Limbs>
inline void fix_row(const OperandArgs& args, int row, float largest) {
  const float* const from = args.from + row * args.columns;
  const __m512 factor = fixed_factor<Limbs>(args, row, largest);
  auto* const to = reinterpret_cast<std::byte*>(args.x + row * args.words * kWordColumns);
  for (std::int64_t word = 0; word < args.words; ++word) {
    const std::int64_t first = word * kWordColumns;
    fix_word<Limbs>(from + first, args.columns - first, factor, to + word * kFixedBytes<Limbs>);
  }
}

// Rows from `first` on, [words][Group times 64 / Group columns][limbs][rows][64 / Group]: word by word, so that each
// stays in the first-level cache until all rows are there.
template <int Limbs, int Group>
inline void fix_group(const OperandArgs& args, int first, const float* largest) {
  constexpr std::int64_t kColumns = kWordColumns / Group;
  const int rows = std::min(Group, args.rows - first);
  __m512 factors[Group];
  for (int row = 0; row < rows; ++row) factors[row] = fixed_factor<Limbs>(args, first + row, largest[first + row]);
  auto* to = reinterpret_cast<std::byte*>(args.x + first * args.words * kWordColumns);
  for (std::int64_t word = 0; word < args.words; ++word, to += Group * kFixedBytes<Limbs>) {
    const std::int64_t column = word * kWordColumns;
    for (int row = 0; row < rows; ++row) {
      alignas(64) std::byte own[kFixedBytes<Limbs>];
      fix_word<Limbs>(args.from + (first + row) * args.columns + column, args.columns - column, factors[row], own);
#pragma GCC unroll 4
      for (int limb = 0; limb < Limbs; ++limb) {
#pragma GCC unroll 8
        for (int part = 0; part < Group; ++part) {
          __builtin_memcpy(to + (part * Limbs + limb) * 64 + row * kColumns,
                           own + limb * kWordColumns + part * kColumns, kColumns);
        }
      }
    }
  }
}

template <int Limbs>
inline void fix_rows(const OperandArgs& args, const float* largest) {
  for (int first = 0; first < args.rows; first += next_group_rows(args.rows - first)) {
    switch (next_group_rows(args.rows - first)) {
      case 1: fix_row<Limbs>(args, first, largest[first]); break;
      case 2: fix_group<Limbs, 2>(args, first, largest); break;
      case 4: fix_group<Limbs, 4>(args, first, largest); break;
      default: fix_group<Limbs, 8>(args, first, largest); break;
    }
  }
}

// Rows of x for weights in any form; fixed-point numbers for int8 as bits and values.
inline OperandForm fixed_operands(const OperandArgs& args) {
  if (is_unbounded(args)) {
    place_rows(args, false);
    return OperandForm::unbounded;
  }
  if (args.lists) return interleaved_operands(args);
  if (args.windows) return windowed_operands(args);
  switch (args.type) {
    case ValueType::float32:
    case ValueType::float16: place_rows(args, true); return OperandForm::natural;
    case ValueType::bfloat16: {
      const int in_groups = place_rows(args, true);
      if constexpr (!kSpreadsHalves) return OperandForm::natural;
      shuffle_words<2, false>(args, in_groups);
      return OperandForm::shuffled;
    }
    case ValueType::int8: break;
  }
  const std::int64_t group = args.group_columns;
  if (group != 0 && group % kWordColumns != 0 && kWordColumns % group != 0) {
    // Groups begin within words, at other columns in each.
    place_rows(args, false);
    return OperandForm::natural;
  }
  if (group != 0 || args.columns > kMostFixedColumns) {
    place_rows(args, false);
    shuffle_words<4, true>(args, 0);
    return OperandForm::shuffled;
  }
  float largest[kMostRows];
  switch (find_largest(args, largest).bytes) {
    case 2: fix_rows<2>(args, largest); return OperandForm::fixed16;
    case 3: fix_rows<3>(args, largest); return OperandForm::fixed24;
    default: fix_rows<4>(args, largest); return OperandForm::fixed32;
  }
}

}  // namespace sift::cpu::SIFT_ISA
