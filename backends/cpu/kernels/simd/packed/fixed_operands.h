// Rows of x for weights of 8 and 16 bits: fixed-point numbers, or floats in the order in which values come out of their
// bytes.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd/packed/operands.h"

namespace sift::cpu::SIFT_ISA {

inline constexpr int kLimbs = 4;
inline constexpr int kFixedBits = 30;
// An integer sum of more products of bytes could run over.
inline constexpr std::int64_t kMostFixedColumns = 65536;
// Bytes of a word of x as fixed-point numbers: of a row, and of the rows of a group.
inline constexpr std::int64_t kFixedBytes = kLimbs * kWordColumns;
inline constexpr std::int64_t kFixedGroupBytes = kRowsOfGroup * kFixedBytes;
// A group has eight columns of each row side by side.
inline constexpr std::int64_t kFixedColumns = 8;

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

// Up to 16 columns; those behind the last are zero.
[[gnu::always_inline]] inline __m512 some_columns(const float* from, std::int64_t left) {
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFFU : (1U << std::max<std::int64_t>(left, 0)) - 1U);
  return _mm512_maskz_loadu_ps(mask, from);
}

// 64 columns become four times 64 bytes.
[[gnu::always_inline]] inline void fix_word(const float* from, std::int64_t left, __m512 factor, std::byte* to) {
  const __m512i offset = _mm512_set1_epi32(1 << kFixedBits);
  __m512i parts[4];
#pragma GCC unroll 4
  for (int part = 0; part < 4; ++part) {
    const __m512 scaled = _mm512_mul_ps(some_columns(from + 16 * part, left - 16 * part), factor);
    parts[part] = _mm512_add_epi32(_mm512_cvtps_epi32(scaled), offset);
  }
  auto* const bytes = reinterpret_cast<__m128i*>(to);
#pragma GCC unroll 4
  for (int limb = 0; limb < kLimbs; ++limb) {
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      _mm_store_si128(bytes + 4 * limb + part, _mm512_cvtepi32_epi8(parts[part]));
      parts[part] = _mm512_srli_epi32(parts[part], 8);
    }
  }
}

// A row of x by itself, [words][limbs][64], or that of a group, [words][8 times 8 columns][limbs][rows of a group][8].
inline void fix_row(const OperandArgs& args, int row, bool in_group) {
  const float* const from = args.from + row * args.columns;
  __m512 most = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < args.columns; i += 16) {
    most = _mm512_max_ps(most, _mm512_abs_ps(some_columns(from + i, args.columns - i)));
  }
  int exponent = 0;
  std::frexp(_mm512_reduce_max_ps(most), &exponent);
  const int shift = std::min(kFixedBits - exponent, 126);
  args.scales[row] = std::ldexp(1.0F, -shift);
  const __m512 factor = _mm512_set1_ps(std::ldexp(1.0F, shift));
  const int place = row % kRowsOfGroup;
  auto* const x = reinterpret_cast<std::byte*>(args.x + (in_group ? row - place : row) * args.words * kWordColumns);
  for (std::int64_t word = 0; word < args.words; ++word) {
    const float* const columns = from + word * kWordColumns;
    const std::int64_t left = args.columns - word * kWordColumns;
    if (!in_group) {
      fix_word(columns, left, factor, x + word * kFixedBytes);
      continue;
    }
    alignas(64) std::byte own[kFixedBytes];
    fix_word(columns, left, factor, own);
    std::byte* const to = x + word * kFixedGroupBytes + place * kFixedColumns;
    for (std::int64_t limb = 0; limb < kLimbs; ++limb) {
#pragma GCC unroll 8
      for (std::int64_t eight = 0; eight < kWordColumns / kFixedColumns; ++eight) {
        __builtin_memcpy(to + (eight * kLimbs + limb) * 64, own + limb * kWordColumns + eight * kFixedColumns,
                         kFixedColumns);
      }
    }
  }
}

inline OperandForm wide_operands(const OperandArgs& args) {
  if (is_unbounded(args)) {
    place_rows(args, 0);
    return OperandForm::unbounded;
  }
  const int groups = args.rows / kRowsOfGroup;
  switch (args.type) {
    case ValueType::float32:
    case ValueType::float16: place_rows(args, groups); return OperandForm::natural;
    case ValueType::bfloat16:
      place_rows(args, groups);
      shuffle_words<2, false>(args, groups * kRowsOfGroup);
      return OperandForm::shuffled;
    case ValueType::int8: break;
  }
  if (args.grouped || args.columns > kMostFixedColumns) {
    place_rows(args, 0);
    shuffle_words<4, true>(args, 0);
    return OperandForm::shuffled;
  }
  for (int row = 0; row < args.rows; ++row) fix_row(args, row, row < groups * kRowsOfGroup);
  return OperandForm::fixed;
}

}  // namespace sift::cpu::SIFT_ISA
