// Active weights of some columns of a row as a list: where their operands are, and their values as floats.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "simd/packed/expand.h"
#include "simd/packed/expansion.h"
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

// Writes the places of active columns, `unit` for each column from the first one on, word by word. kListSlack more may
// be written. A Unit that is not zero is the unit.
template <std::uint16_t Unit, bool Always = false>
class PlaceWriter {
 public:
  [[gnu::always_inline]] PlaceWriter(std::uint16_t unit, std::uint16_t* places) : places_(places), to_(places) {
#if defined(__AVX512VBMI2__)
    alignas(64) std::uint8_t numbers[kWordColumns];
    for (std::size_t column = 0; column < sizeof numbers; ++column) {
      numbers[column] = static_cast<std::uint8_t>(column * (kFitsByte ? Unit : 1));
    }
    columns_ = _mm512_load_si512(numbers);
    units_ = _mm512_set1_epi16(static_cast<std::int16_t>(unit));
    step_ = _mm512_set1_epi16(static_cast<std::int16_t>(kWordColumns * unit));
    base_ = _mm512_setzero_si512();
#elif defined(__AVX2__)
    units_ = _mm_set1_epi16(static_cast<std::int16_t>(unit));
    step_ = _mm_set1_epi16(static_cast<std::int16_t>(8 * unit));
    base_ = _mm_setzero_si128();
#else
    unit_ = unit;
#endif
  }

  [[gnu::always_inline]] void add(std::uint64_t bits) {
#if defined(__AVX512VBMI2__)
    const __m512i active = compressed_bytes(bits, columns_);
    const int count = __builtin_popcountll(bits);
    _mm512_storeu_si512(to_, placed(_mm512_castsi512_si256(active)));
    // Of half of the columns no branch is predicted.
    if (Always || count > 32) [[unlikely]]
      _mm512_storeu_si512(to_ + 32, placed(_mm512_extracti64x4_epi64(active, 1)));
    to_ += count;
    base_ = _mm512_add_epi16(base_, step_);
#else
#if defined(__AVX2__)
#pragma GCC unroll 8
    for (std::int64_t part = 0; part < kWordColumns; part += 8) {
      const auto set = static_cast<std::size_t>(bits >> part & 0xFFU);
      const auto* const columns = reinterpret_cast<const __m128i*>(kColumnTable.columns[set].data());
      const __m128i places = _mm_mullo_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(columns)), units_);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to_), _mm_add_epi16(places, base_));
      to_ += __builtin_popcount(static_cast<unsigned>(set));
      base_ = _mm_add_epi16(base_, step_);
    }
#else
#pragma GCC unroll 8
    for (std::int64_t part = 0; part < kWordColumns; part += 8, base_ += 8 * unit_) {
      const auto set = static_cast<std::size_t>(bits >> part & 0xFFU);
      EightColumns columns;
      std::memcpy(&columns, kColumnTable.columns[set].data(), sizeof columns);
      *reinterpret_cast<EightPlaces*>(to_) =
          __builtin_convertvector(columns, EightPlaces) * unit_ + static_cast<std::uint16_t>(base_);
      to_ += kColumnTable.counts[set];
    }
#endif
#endif
  }

  std::int64_t count() const { return to_ - places_; }

 private:
  std::uint16_t* places_;
  std::uint16_t* to_;
#if defined(__AVX512VBMI2__)
  // Places within a word fit bytes: there is nothing left to multiply.
  static constexpr bool kFitsByte = Unit != 0 && Unit <= 4;

  [[gnu::always_inline]] __m512i placed(__m256i columns) const {
    __m512i places = _mm512_cvtepu8_epi16(columns);
    if constexpr (!kFitsByte) places = _mm512_mullo_epi16(places, units_);
    return _mm512_add_epi16(places, base_);
  }

  __m512i columns_;
  __m512i units_;
  __m512i step_;
  __m512i base_;
#elif defined(__AVX2__)
  __m128i units_;
  __m128i step_;  // of eight columns
  __m128i base_;
#else
  std::uint16_t unit_;
  std::uint32_t base_ = 0;
#endif
};

// As floats, times `scale`. Values of up to a vector more may be read and written.
template <ValueType Type>
[[gnu::always_inline]] inline void list_values_of(const std::byte* from, std::int64_t count, float scale, float* to) {
  constexpr auto kBytes = static_cast<std::int64_t>(bytes_of(Type));
#if defined(__AVX2__)
  for (std::int64_t i = 0; i < count; i += kVecLanes) {
    store_unaligned(to + i, converted<Type>(from + i * kBytes) * splat(scale));
  }
#else
  for (std::int64_t i = 0; i < count; ++i) to[i] = float_at(Type, from + i * kBytes) * scale;
#endif
}

[[gnu::always_inline]] inline void list_values(ValueType type, const std::byte* from, std::int64_t count, float scale,
                                               float* to) {
  switch (type) {
    case ValueType::float32: return list_values_of<ValueType::float32>(from, count, scale, to);
    case ValueType::bfloat16: return list_values_of<ValueType::bfloat16>(from, count, scale, to);
    case ValueType::float16: return list_values_of<ValueType::float16>(from, count, scale, to);
    case ValueType::int8: break;
  }
  list_values_of<ValueType::int8>(from, count, scale, to);
}

// The same of int8 for a row's active columns [first, end), times the scales of their groups. A group is of whole parts
// of 16 columns, and `first` the beginning of one.
inline void list_grouped_values(const std::uint64_t* masks, std::int64_t words, std::int64_t first, std::int64_t end,
                                const float* scales, std::int64_t group_columns, const std::byte* from, float* to) {
  scales += first / group_columns;
  std::int64_t left = group_columns - first % group_columns;
  for (std::int64_t column = first; column < end; column += kGroupMultiple) {
    const std::int64_t part_end = std::min(column + kGroupMultiple, end);
    const int count = __builtin_popcountll(active_bits(masks, words, column, part_end));
#if defined(__AVX2__)
    // All that a part may have: what is too much is written again.
    list_values_of<ValueType::int8>(from, kGroupMultiple, *scales, to);
#else
    list_values_of<ValueType::int8>(from, count, *scales, to);
#endif
    from += count;
    to += count;
    left -= kGroupMultiple;
    if (left == 0) {
      ++scales;
      left = group_columns;
    }
  }
}

}  // namespace sift::cpu::SIFT_ISA
