// Packed weights with the zeros between them, four rows side by side, as the micro-kernels of dense rows take them.
#pragma once

#include <algorithm>
#include <bit>

#include "simd/packed/expand.h"
#include "simd/packed/row_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Rows that lie side by side.
inline constexpr int kFilledRows = 4;
// Values are read once, from memory if there are many: so far ahead they are asked for.
inline constexpr int kFilledAhead = 1024;

#if defined(__AVX2__)
// Stores [kVecLanes][4], out of four rows of as many columns.
[[gnu::always_inline]] inline void store_columns(const Vec* rows, float* out) {
#if defined(__AVX512F__)
  __m512 r[kFilledRows];
  for (int i = 0; i < kFilledRows; ++i) r[i] = reinterpret_cast<__m512>(rows[i]);
  const __m512d low_first = _mm512_castps_pd(_mm512_unpacklo_ps(r[0], r[1]));
  const __m512d low_last = _mm512_castps_pd(_mm512_unpacklo_ps(r[2], r[3]));
  const __m512d high_first = _mm512_castps_pd(_mm512_unpackhi_ps(r[0], r[1]));
  const __m512d high_last = _mm512_castps_pd(_mm512_unpackhi_ps(r[2], r[3]));
  // Lane i of four floats has column 4 i, 4 i + 1, and so on.
  const __m512d first = _mm512_unpacklo_pd(low_first, low_last);
  const __m512d second = _mm512_unpackhi_pd(low_first, low_last);
  const __m512d third = _mm512_unpacklo_pd(high_first, high_last);
  const __m512d fourth = _mm512_unpackhi_pd(high_first, high_last);
  const __m512d a = _mm512_shuffle_f64x2(first, second, 0x44);
  const __m512d b = _mm512_shuffle_f64x2(third, fourth, 0x44);
  const __m512d c = _mm512_shuffle_f64x2(first, second, 0xEE);
  const __m512d d = _mm512_shuffle_f64x2(third, fourth, 0xEE);
  _mm512_store_pd(out, _mm512_shuffle_f64x2(a, b, 0x88));
  _mm512_store_pd(out + 16, _mm512_shuffle_f64x2(a, b, 0xDD));
  _mm512_store_pd(out + 32, _mm512_shuffle_f64x2(c, d, 0x88));
  _mm512_store_pd(out + 48, _mm512_shuffle_f64x2(c, d, 0xDD));
#else
  __m256 r[kFilledRows];
  for (int i = 0; i < kFilledRows; ++i) r[i] = reinterpret_cast<__m256>(rows[i]);
  const __m256d low_first = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1]));
  const __m256d low_last = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
  const __m256d high_first = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
  const __m256d high_last = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
  const __m256 columns[4] = {_mm256_castpd_ps(_mm256_unpacklo_pd(low_first, low_last)),
                             _mm256_castpd_ps(_mm256_unpackhi_pd(low_first, low_last)),
                             _mm256_castpd_ps(_mm256_unpacklo_pd(high_first, high_last)),
                             _mm256_castpd_ps(_mm256_unpackhi_pd(high_first, high_last))};
  _mm256_store_ps(out, _mm256_permute2f128_ps(columns[0], columns[1], 0x20));
  _mm256_store_ps(out + 8, _mm256_permute2f128_ps(columns[2], columns[3], 0x20));
  _mm256_store_ps(out + 16, _mm256_permute2f128_ps(columns[0], columns[1], 0x31));
  _mm256_store_ps(out + 24, _mm256_permute2f128_ps(columns[2], columns[3], 0x31));
#endif
}

template <ValueType Type, bool Masked>
void fill_in_fours(const FillInArgs& args) {
  constexpr int kParts = kWordColumns / kVecLanes;
  constexpr std::uint32_t kPart = kVecLanes == 16 ? 0xFFFFU : 0xFFU;
  for (std::int64_t first = 0; first < args.rows; first += kFilledRows) {
    const std::byte* value[kFilledRows];
    const std::uint64_t* masks[kFilledRows];
    const float* scale[kFilledRows];
    Vec factor[kFilledRows];
    for (int i = 0; i < kFilledRows; ++i) {
      // Behind the last row, that again: its sums are not stored.
      const std::int64_t row = std::min(first + i, args.rows - 1);
      value[i] = args.values + args.starts[row];
      masks[i] = Masked ? args.masks + row * args.words : nullptr;
      scale[i] = args.scales == nullptr ? nullptr : args.scales + row * args.groups;
      factor[i] = splat(args.scales == nullptr ? 1.0F : *scale[i]);
    }
    std::int64_t scaled = args.group_columns;  // columns that are left of the group
    std::int64_t group = 0;
    float* out = args.out + first * args.words * kWordColumns;
    for (std::int64_t word = 0; word < args.words; ++word) {
      std::uint64_t bits[kFilledRows];
      for (int i = 0; i < kFilledRows; ++i) bits[i] = Masked ? masks[i][word] : ~std::uint64_t{0};
      const std::int64_t parts =
          std::min<std::int64_t>(kParts, (args.columns - word * kWordColumns - 1) / kVecLanes + 1);
#pragma GCC unroll 1
      for (std::int64_t part = 0; part < parts; ++part) {
        if (args.group_columns != 0) {
          if (scaled == 0) {
            // Columns behind the last one have no group.
            group = std::min(group + 1, args.groups - 1);
            scaled = args.group_columns;
            for (int i = 0; i < kFilledRows; ++i) factor[i] = splat(scale[i][group]);
          }
          scaled -= kVecLanes;
        }
        Vec rows[kFilledRows];
#pragma GCC unroll 4
        for (int i = 0; i < kFilledRows; ++i) {
          const auto lanes = static_cast<std::uint32_t>(bits[i]) & kPart;
          bits[i] >>= kVecLanes;
          __builtin_prefetch(value[i] + kFilledAhead, 0, 2);
          rows[i] = Masked ? expanded<Type>(active_lanes(lanes), value[i]) : converted<Type>(value[i]);
          // Times the smallest scales, the unit would not be a float.
          if constexpr (Masked && kExpandedUnit<Type> != 1.0F) rows[i] *= splat(kExpandedUnit<Type>);
          rows[i] *= factor[i];
          value[i] += static_cast<std::size_t>(Masked ? __builtin_popcount(lanes) : kVecLanes) * bytes_of(Type);
        }
        store_columns(rows, out);
        out += kFilledRows * kVecLanes;
      }
    }
  }
}

inline void fill_in_rows(const FillInArgs& args) {
  const auto run = [&]<ValueType Type>() {
    args.masks != nullptr ? fill_in_fours<Type, true>(args) : fill_in_fours<Type, false>(args);
  };
  switch (args.type) {
    case ValueType::float32: return run.template operator()<ValueType::float32>();
    case ValueType::bfloat16: return run.template operator()<ValueType::bfloat16>();
    case ValueType::float16: return run.template operator()<ValueType::float16>();
    case ValueType::int8: break;
  }
  run.template operator()<ValueType::int8>();
}
#else
inline void fill_in_rows(const FillInArgs& args) {
  const std::int64_t row_floats = args.words * kWordColumns;
  std::fill_n(args.out, (args.rows + kFilledRows - 1) / kFilledRows * kFilledRows * row_floats, 0.0F);
  const std::int64_t last_columns = args.columns - (args.words - 1) * kWordColumns;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    float* const to = args.out + row / kFilledRows * kFilledRows * row_floats + row % kFilledRows;
    const std::byte* value = args.values + args.starts[row];
    for (std::int64_t word = 0; word < args.words; ++word) {
      std::uint64_t bits = args.masks == nullptr ? ~std::uint64_t{0} : args.masks[row * args.words + word];
      if (word + 1 == args.words && last_columns < kWordColumns) bits &= (std::uint64_t{1} << last_columns) - 1U;
      for (; bits != 0; bits &= bits - 1, value += bytes_of(args.type)) {
        const std::int64_t column = word * kWordColumns + std::countr_zero(bits);
        const std::int64_t group = args.group_columns == 0 ? 0 : std::min(column / args.group_columns, args.groups - 1);
        const float scale = args.scales == nullptr ? 1.0F : args.scales[row * args.groups + group];
        to[column * kFilledRows] = float_at(args.type, value) * scale;
      }
    }
  }
}
#endif

}  // namespace sift::cpu::SIFT_ISA
