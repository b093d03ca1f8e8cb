// Active weights of some columns of a row as a list: where their operands are, and their values as floats.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "simd/packed/expand.h"
#include "simd/packed/row_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

#if !defined(__AVX512VBMI2__)
// For each set of eight columns: those that are in it, in order, and how many there are.
struct ColumnTable {
  alignas(64) std::array<std::array<std::uint8_t, 8>, 256> columns{};
  std::array<std::uint8_t, 256> counts{};

  constexpr ColumnTable() {
    for (std::size_t bits = 0; bits < columns.size(); ++bits) {
      for (std::uint8_t column = 0; column < 8; ++column) {
        if ((bits >> column & 1U) != 0) columns[bits][counts[bits]++] = column;
      }
    }
  }
};
inline constexpr ColumnTable kColumnTable;

typedef std::uint8_t EightColumns __attribute__((vector_size(8)));
typedef std::uint16_t EightPlaces __attribute__((vector_size(16), aligned(2), may_alias));
#endif

// Bits of up to 64 columns from `column` to before `end` of a row of `words` words.
[[gnu::always_inline]] inline std::uint64_t active_bits(const std::uint64_t* masks, std::int64_t words,
                                                        std::int64_t column, std::int64_t end) {
  std::uint64_t bits = ~std::uint64_t{0};
  if (masks != nullptr) {
    const std::int64_t word = column / kWordColumns;
    const std::int64_t shift = column % kWordColumns;
    bits = masks[word] >> shift;
    if (shift != 0 && word + 1 < words) bits |= masks[word + 1] << (kWordColumns - shift);
  }
  if (end - column < kWordColumns) bits &= (std::uint64_t{1} << (end - column)) - 1U;
  return bits;
}

// Places of a row's active columns [first, end), `unit` for each column from the first one on. Returns how many there
// are; kListSlack more may be written. `masks` are those of the row, null if all columns are active.
[[gnu::always_inline]] inline std::int64_t list_places(const std::uint64_t* masks, std::int64_t words,
                                                       std::int64_t first, std::int64_t end, std::uint16_t unit,
                                                       std::uint16_t* places) {
  std::uint16_t* to = places;
#if defined(__AVX512VBMI2__)
  alignas(64) std::uint8_t numbers[kWordColumns];
  for (std::size_t column = 0; column < sizeof numbers; ++column) numbers[column] = static_cast<std::uint8_t>(column);
  const __m512i columns = _mm512_load_si512(numbers);
  const __m512i units = _mm512_set1_epi16(static_cast<std::int16_t>(unit));
  const __m512i step = _mm512_slli_epi16(units, 6);
  static_assert(kWordColumns == 1 << 6);
  __m512i base = _mm512_setzero_si512();
  const auto placed = [&](__m256i some) __attribute__((always_inline)) {
    return _mm512_add_epi16(_mm512_mullo_epi16(_mm512_cvtepu8_epi16(some), units), base);
  };
  for (std::int64_t column = first; column < end; column += kWordColumns) {
    const std::uint64_t bits = active_bits(masks, words, column, end);
    const __m512i active = _mm512_maskz_compress_epi8(bits, columns);
    const int count = __builtin_popcountll(bits);
    _mm512_storeu_si512(to, placed(_mm512_castsi512_si256(active)));
    if (count > 32) _mm512_storeu_si512(to + 32, placed(_mm512_extracti64x4_epi64(active, 1)));
    to += count;
    base = _mm512_add_epi16(base, step);
  }
#else
  for (std::int64_t column = first; column < end; column += kWordColumns) {
    const std::uint64_t bits = active_bits(masks, words, column, end);
#pragma GCC unroll 8
    for (std::int64_t part = 0; part < kWordColumns; part += 8) {
      const auto set = static_cast<std::size_t>(bits >> part & 0xFFU);
      EightColumns columns;
      std::memcpy(&columns, kColumnTable.columns[set].data(), sizeof columns);
      const auto base = static_cast<std::uint16_t>((column - first + part) * unit);
      *reinterpret_cast<EightPlaces*>(to) = __builtin_convertvector(columns, EightPlaces) * unit + base;
      to += kColumnTable.counts[set];
    }
  }
#endif
  return to - places;
}

// As floats, times `scale`. Values of up to a vector more may be read and written.
template <ValueType Type>
void list_values(const std::byte* from, std::int64_t count, float scale, float* to) {
  constexpr auto kBytes = static_cast<std::int64_t>(bytes_of(Type));
#if defined(__AVX2__)
  for (std::int64_t i = 0; i < count; i += kVecLanes) {
    store_unaligned(to + i, converted<Type>(from + i * kBytes) * splat(scale));
  }
#else
  for (std::int64_t i = 0; i < count; ++i) to[i] = float_at(Type, from + i * kBytes) * scale;
#endif
}

using ListValues = void (*)(const std::byte* from, std::int64_t count, float scale, float* to);

inline ListValues list_values_of(ValueType type) {
  switch (type) {
    case ValueType::float32: return &list_values<ValueType::float32>;
    case ValueType::bfloat16: return &list_values<ValueType::bfloat16>;
    case ValueType::float16: return &list_values<ValueType::float16>;
    case ValueType::int8: break;
  }
  return &list_values<ValueType::int8>;
}

// Multiplies the values of a row's active columns [first, end) by the scales of their groups; a group is of whole parts
// of 16 columns, and `first` the beginning of one.
inline void scale_values(const std::uint64_t* masks, std::int64_t words, std::int64_t first, std::int64_t end,
                         const float* scales, std::int64_t group_columns, float* values) {
  scales += first / group_columns;
  std::int64_t left = group_columns - first % group_columns;
  for (std::int64_t column = first; column < end; column += kGroupMultiple) {
    const std::int64_t part_end = std::min(column + kGroupMultiple, end);
    const int count = __builtin_popcountll(active_bits(masks, words, column, part_end));
    for (float* const last = values + count; values != last; ++values) *values *= *scales;
    left -= kGroupMultiple;
    if (left == 0) {
      ++scales;
      left = group_columns;
    }
  }
}

}  // namespace sift::cpu::SIFT_ISA
