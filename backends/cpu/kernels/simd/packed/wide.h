// The same kernels with instructions that multiply bytes (VNNI), and ones that spread values of 8 and 16 bits (VBMI2)
// where there are any.
//
// int8 values with one scale per row are multiplied as integers. A row of x becomes fixed-point numbers of three bytes:
// the largest magnitude is scaled by a power of two to [2^22, 2^23], 2^23 is added, and each of the three bytes is
// multiplied by itself. Sums of products are exact, and what rounding x loses is at most 2^-22 of its largest
// magnitude; the sum of the row's values, times 2^23, is taken off at the end. Where that may be much beside the other
// numbers of the row, there are four bytes, with 30 bits for the largest. Where a product allows for it, and the
// largest is not far above the others, there are two: it is scaled to 2^15, and rounding loses at most 2^-16 of it.
#pragma once

#include "simd/packed/fixed_group.h"
#include "simd/packed/fixed_operands.h"
#include "simd/packed/fixed_rows.h"
#include "simd/packed/fixed_windows.h"
#include "simd/packed/multiply.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512VBMI2__)
template <ValueType Type, int Count, bool Masked>
void multiply_halves(const PackedRowsArgs& args, std::int64_t row_begin, std::int64_t row_end, int first) {
  constexpr int kSums = Count <= 2 ? 2 : 1;
  const std::ptrdiff_t x_floats = args.words * kWordColumns;
  const float* const x = args.x + first * x_floats;
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const std::byte* value = args.values + args.starts[row];
    __m512 sums[Count][2 * kSums];
    for (auto& own : sums) {
      for (auto& sum : own) sum = _mm512_setzero_ps();
    }
    for_each_word<Masked>(args, row, [&](std::int64_t word, std::uint64_t bits) __attribute__((always_inline)) {
      prefetch_values(args, value);
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        const auto mask = static_cast<std::uint32_t>(bits >> (32 * part));
        const __m512i packed = _mm512_loadu_si512(value);
        const __m512i spread = Masked ? expanded_words(mask, packed) : packed;
        value += 2 * (Masked ? __builtin_popcount(mask) : 32);
        __m512 low;
        __m512 high;
        if constexpr (Type == ValueType::bfloat16) {
          low = _mm512_castsi512_ps(_mm512_slli_epi32(spread, 16));
          high = _mm512_castsi512_ps(_mm512_and_si512(spread, upper));
        } else {
          low = _mm512_cvtph_ps(_mm512_castsi512_si256(spread));
          high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(spread, 1));
        }
        const float* const operands = x + word * kWordColumns + 32 * part;
#pragma GCC unroll 4
        for (int i = 0; i < Count; ++i) {
          __m512* const own = sums[i] + 2 * (part % kSums);
          own[0] = _mm512_fmadd_ps(low, _mm512_load_ps(operands + i * x_floats), own[0]);
          own[1] = _mm512_fmadd_ps(high, _mm512_load_ps(operands + i * x_floats + 16), own[1]);
        }
      }
    });
#pragma GCC unroll 4
    for (int i = 0; i < Count; ++i) {
      __m512 sum = _mm512_add_ps(sums[i][0], sums[i][1]);
      if constexpr (kSums == 2) sum = _mm512_add_ps(sum, _mm512_add_ps(sums[i][2], sums[i][3]));
      finish(args, row, first + i, _mm512_reduce_add_ps(sum));
    }
  }
}

#endif

// int8 as floats: the byte at the top of a dword is an integer, times 2^24.
template <int Count, bool Masked>
void multiply_bytes(const PackedRowsArgs& args, std::int64_t row_begin, std::int64_t row_end, int first) {
  const std::ptrdiff_t x_floats = args.words * kWordColumns;
  const float* const x = args.x + first * x_floats;
  const __m512i top = _mm512_set1_epi32(static_cast<int>(0xFF000000U));
  const __m512 unit = _mm512_set1_ps(0x1p-24F);
  const bool grouped = args.group_columns != 0;
  // Which of a word's scales each lane's four columns have.
  const std::int64_t in_word = grouped ? std::min(args.group_columns, kWordColumns) : kWordColumns;
  alignas(64) std::int32_t lanes[16];
  for (int lane = 0; lane < 16; ++lane) lanes[lane] = static_cast<std::int32_t>(4 * lane / in_word);
  const __m512i scale_of = _mm512_load_si512(lanes);
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const std::byte* value = args.values + args.starts[row];
    const float* const scales = grouped ? args.scales + row * args.groups : nullptr;
    __m512 sums[Count];
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    for_each_word<Masked>(args, row, [&](std::int64_t word, std::uint64_t bits) __attribute__((always_inline)) {
      prefetch_values(args, value);
      const __m512i spread = spread_bytes<Masked>(bits, value);
      __m512 weights[4];
      weights[0] = _mm512_cvtepi32_ps(_mm512_and_si512(spread, top));
      weights[1] = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_slli_epi32(spread, 8), top));
      weights[2] = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_slli_epi32(spread, 16), top));
      weights[3] = _mm512_cvtepi32_ps(_mm512_slli_epi32(spread, 24));
      __m512 scale = unit;
      if (grouped) {
        const std::int64_t at = word * kWordColumns / args.group_columns;
        const auto count = static_cast<unsigned>(std::min<std::int64_t>(kWordColumns / in_word, args.groups - at));
        const __m128 some = _mm_maskz_loadu_ps(static_cast<__mmask8>((1U << count) - 1U), scales + at);
        scale = _mm512_mul_ps(unit, _mm512_permutexvar_ps(scale_of, _mm512_castps128_ps512(some)));
      }
      const float* const operands = x + word * kWordColumns;
#pragma GCC unroll 4
      for (int i = 0; i < Count; ++i) {
        const float* const own = operands + i * x_floats;
        __m512 products = _mm512_mul_ps(weights[0], _mm512_load_ps(own));
#pragma GCC unroll 3
        for (int part = 1; part < 4; ++part) {
          products = _mm512_fmadd_ps(weights[part], _mm512_load_ps(own + 16 * part), products);
        }
        sums[i] = _mm512_fmadd_ps(products, scale, sums[i]);
      }
    });
#pragma GCC unroll 4
    for (int i = 0; i < Count; ++i) finish(args, row, first + i, _mm512_reduce_add_ps(sums[i]));
  }
}

template <bool Masked>
MultiplySome wide_some(const PackedRowsArgs& args, int count) {
  const bool is_natural_int8 = args.type == ValueType::int8 && args.form == OperandForm::natural;
  const bool is_spread = args.type == ValueType::int8 || (kSpreadsHalves && args.type != ValueType::float32);
  if (!is_spread || is_natural_int8) return some_of_type<Masked>(args, count);
  const auto choose = [&](MultiplySome one, MultiplySome two, MultiplySome three, MultiplySome four) {
    return count == 1 ? one : count == 2 ? two : count == 3 ? three : four;
  };
#if defined(__AVX512VBMI2__)
  constexpr ValueType kBrain = ValueType::bfloat16;
  constexpr ValueType kHalf = ValueType::float16;
  if (args.type == kBrain) {
    return choose(&multiply_halves<kBrain, 1, Masked>, &multiply_halves<kBrain, 2, Masked>,
                  &multiply_halves<kBrain, 3, Masked>, &multiply_halves<kBrain, 4, Masked>);
  }
  if (args.type == kHalf) {
    return choose(&multiply_halves<kHalf, 1, Masked>, &multiply_halves<kHalf, 2, Masked>,
                  &multiply_halves<kHalf, 3, Masked>, &multiply_halves<kHalf, 4, Masked>);
  }
#endif
  return choose(&multiply_bytes<1, Masked>, &multiply_bytes<2, Masked>, &multiply_bytes<3, Masked>,
                &multiply_bytes<4, Masked>);
}

// Some rows of weights are taken for all groups of rows of x before the next, as in multiply_by.
template <int Limbs, bool Masked>
void multiply_fixed(const PackedRowsArgs& args) {
  const std::int64_t at_once = args.x_rows > kRowsOfGroup ? kRowsAtOnce : args.row_end - args.row_begin;
  for (std::int64_t row = args.row_begin; row < args.row_end; row += at_once) {
    const std::int64_t end = std::min(row + at_once, args.row_end);
    for (int first = 0; first < args.x_rows; first += next_group_rows(args.x_rows - first)) {
      switch (next_group_rows(args.x_rows - first)) {
        case 1: multiply_fixed_one<Limbs, Masked>(args, row, end, first); break;
        case 2: multiply_fixed_group<Limbs, Masked, 2>(args, row, end, first); break;
        case 4: multiply_fixed_group<Limbs, Masked, 4>(args, row, end, first); break;
        default: multiply_fixed_group<Limbs, Masked, 8>(args, row, end, first); break;
      }
    }
  }
}

// Densities at which lists take as long as spread values do, by rows of x (docs/cpu-kernel-notes.md).
inline constexpr double kBytesListedBelow[kMostRows] = {0,    0.015, 0.075, 0.075, 0.14, 0.14, 0.14, 0.14,
                                                        0.13, 0.16,  0.2,   0.2,   0.27, 0.27, 0.27, 0.27};
inline constexpr double kOthersListedBelow[kMostRows] = {0,   0.1, 0.1,  0.16, 0.23, 0.23, 0.23, 0.24,
                                                         0.3, 0.3, 0.32, 0.32, 0.42, 0.42, 0.42, 0.42};

// The share of these densities where activations have two bytes: integer products take less time then.
inline constexpr double kTwoBytesListed = 0.85;

// Multiplied as integers.
inline bool is_fixed(const PackedKind& kind) { return kind.type == ValueType::int8 && !kind.grouped; }

inline double wide_list_below(const PackedKind& kind, int x_rows) {
  // Without instructions that compress columns, writing lists takes longer than integer products.
  if constexpr (!kSpreadsHalves) return is_fixed(kind) ? 0 : list_below(kind, x_rows);
  if (is_fixed(kind)) return kBytesListedBelow[x_rows - 1] * (kind.two_bytes ? kTwoBytesListed : 1.0);
  // Scales of groups take more time in lists.
  return kOthersListedBelow[x_rows - 1] * (kind.grouped ? 0.5 : 1.0);
}

// Integer products take three quarters of the multiplications of dense rows, or half of them, and need no lists
// (docs/cpu-kernel-notes.md).
inline std::int64_t wide_most_rows(const PackedKind& kind, double density) {
  if (is_fixed(kind)) {
    if (kind.two_bytes && kSpreadsHalves) {
      return density >= 0.4 ? kAnyRows : density >= 0.25 ? 80 : most_rows(kind, density);
    }
    if (density >= 0.45) return !kSpreadsHalves ? 128 : density >= 0.55 ? kAnyRows : 256;
    return density >= 0.25 && kSpreadsHalves ? 48 : most_rows(kind, density);
  }
  if (!kSpreadsHalves) return most_rows(kind, density);
  return density >= 0.25 ? 64 : 40;
}

inline OperandForm wide_operands(const OperandArgs& args) {
#if defined(__AVX512VBMI__)
  const bool is_fixed = args.type == ValueType::int8 && args.columns <= kMostFixedColumns;
  if (args.windows && is_fixed) return fixed_window_operands(args);
#endif
  return fixed_operands(args);
}

inline double wide_window_bytes(ValueType type) {
  if (!kSpreadsHalves) return window_bytes(type);
  // Bytes are looked up faster than they are brought to their columns; more of them take longer from memory.
  return type == ValueType::int8 ? 1.4 : std::min(1.3, window_bytes(type));
}

inline std::int64_t wide_most_rows_in_windows(ValueType type) {
  return type == ValueType::int8 && kSpreadsHalves ? kAnyRows : most_rows_in_windows(type);
}

inline void multiply_wide(const PackedRowsArgs& args) {
  const bool masked = args.masks != nullptr;
  switch (args.form) {
    case OperandForm::unbounded: return multiply_one_by_one(args);
    case OperandForm::interleaved: return multiply_lists(args);
    case OperandForm::windowed: return multiply_windows(args);
#if defined(__AVX512VBMI__)
    case OperandForm::windowed16: return multiply_fixed_windows<2>(args);
    case OperandForm::windowed24: return multiply_fixed_windows<3>(args);
    case OperandForm::windowed32: return multiply_fixed_windows<4>(args);
#endif
    case OperandForm::fixed16: return masked ? multiply_fixed<2, true>(args) : multiply_fixed<2, false>(args);
    case OperandForm::fixed24: return masked ? multiply_fixed<3, true>(args) : multiply_fixed<3, false>(args);
    case OperandForm::fixed32: return masked ? multiply_fixed<4, true>(args) : multiply_fixed<4, false>(args);
    default: break;
  }
  masked ? multiply_by<true>(args, &wide_some<true>) : multiply_by<false>(args, &wide_some<false>);
}

}  // namespace sift::cpu::SIFT_ISA
