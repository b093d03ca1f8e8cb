// Packed weights as the lists that micro-kernels for many rows take.
#pragma once

#include "simd/packed/expand.h"
#include "simd/packed/row_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

inline constexpr int kListColumns = 16;

// Returns where the list ends.
template <ValueType Type>
[[gnu::always_inline]] inline std::size_t list_row(const ListArgs& args, std::int64_t row, std::size_t count) {
  const std::uint64_t* const masks = args.masks == nullptr ? nullptr : args.masks + row * args.words;
  const std::byte* value = args.values + args.starts[row] + args.taken[row] * bytes_of(Type);
  const float* scale = args.scales == nullptr ? nullptr : args.scales + row * args.groups;
  if (args.group_columns != 0) scale += args.first_column / args.group_columns;
  std::int64_t scaled = args.group_columns == 0 ? 0 : args.group_columns - args.first_column % args.group_columns;
#if defined(__AVX512F__)
  const __m512i step = _mm512_set1_epi32(static_cast<int>(args.column_bytes * kListColumns));
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i offsets = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(args.column_bytes)));
#endif
  for (std::int64_t column = args.first_column; column < args.end_column; column += kListColumns) {
    std::uint32_t bits = 0xFFFFU;
    if (masks != nullptr) {
      bits = static_cast<std::uint32_t>(masks[column / kWordColumns] >> (column % kWordColumns)) & 0xFFFFU;
    }
    // Of the last columns, fewer may be there.
    const std::int64_t left = args.end_column - column;
    if (left < kListColumns) bits &= (1U << left) - 1U;
    const float factor = scale == nullptr ? 1.0F : *scale;
    if (args.group_columns != 0) {
      scaled -= kListColumns;
      if (scaled == 0) {
        ++scale;
        scaled = args.group_columns;
      }
    }
    const auto found = static_cast<std::size_t>(__builtin_popcount(bits));
#if defined(__AVX512F__)
    const __m512i packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), offsets);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(args.offsets + count), _mm512_cvtepi32_epi16(packed));
    store_unaligned(args.out + count, converted<Type>(value) * splat(factor));
    offsets = _mm512_add_epi32(offsets, step);
#else
    const auto at = static_cast<std::uint32_t>(column - args.first_column);
    for (std::size_t place = count; bits != 0; bits &= bits - 1, ++place) {
      const auto lane = static_cast<std::uint32_t>(__builtin_ctz(bits));
      args.offsets[place] = static_cast<std::uint16_t>((at + lane) * args.column_bytes);
      args.out[place] = float_at(Type, value + (place - count) * bytes_of(Type)) * factor;
    }
#endif
    count += found;
    value += found * bytes_of(Type);
  }
  return count;
}

template <ValueType Type>
void list_rows(const ListArgs& args) {
  std::size_t count = 0;
  args.list_starts[0] = 0;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const std::size_t end = list_row<Type>(args, row, count);
    args.taken[row] += end - count;
    args.list_starts[row + 1] = static_cast<std::uint32_t>(end);
    count = end;
  }
}

inline void list_packed(const ListArgs& args) {
  switch (args.type) {
    case ValueType::float32: return list_rows<ValueType::float32>(args);
    case ValueType::bfloat16: return list_rows<ValueType::bfloat16>(args);
    case ValueType::float16: return list_rows<ValueType::float16>(args);
    case ValueType::int8: break;
  }
  list_rows<ValueType::int8>(args);
}

}  // namespace sift::cpu::SIFT_ISA
