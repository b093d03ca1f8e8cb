// Packed weights as the lists that micro-kernels for many rows take.
#pragma once

#include "simd/packed/expand.h"
#include "simd/packed/row_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

inline constexpr int kListColumns = 16;

template <ValueType Type>
std::int64_t list_row(const ListArgs& args) {
  std::int64_t count = 0;
  const std::byte* value = args.values;
  const float* scale = args.scales;
  if (scale != nullptr && args.group_columns != 0) scale += args.first_column / args.group_columns;
  std::int64_t scaled = args.group_columns == 0 ? 0 : args.group_columns - args.first_column % args.group_columns;
#if defined(__AVX512F__)
  const __m512i step = _mm512_set1_epi32(static_cast<int>(args.column_bytes * kListColumns));
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i offsets = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(args.column_bytes)));
#endif
  for (std::int64_t column = args.first_column; column < args.end_column; column += kListColumns) {
    std::uint32_t bits = 0xFFFFU;
    if (args.masks != nullptr) {
      bits = static_cast<std::uint32_t>(args.masks[column / kWordColumns] >> (column % kWordColumns)) & 0xFFFFU;
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
    const int found = __builtin_popcount(bits);
#if defined(__AVX512F__)
    const __m512i packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), offsets);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(args.offsets + count), _mm512_cvtepi32_epi16(packed));
    store_unaligned(args.out + count, converted<Type>(value) * splat(factor));
    offsets = _mm512_add_epi32(offsets, step);
#else
    const auto at = static_cast<std::uint32_t>(column - args.first_column);
    for (std::int64_t place = count; bits != 0; bits &= bits - 1, ++place) {
      const auto lane = static_cast<std::uint32_t>(__builtin_ctz(bits));
      args.offsets[place] = static_cast<std::uint16_t>((at + lane) * args.column_bytes);
      args.out[place] = float_at(Type, value + static_cast<std::size_t>(place - count) * bytes_of(Type)) * factor;
    }
#endif
    count += found;
    value += static_cast<std::size_t>(found) * bytes_of(Type);
  }
  return count;
}

inline std::int64_t list_packed(const ListArgs& args) {
  switch (args.type) {
    case ValueType::float32: return list_row<ValueType::float32>(args);
    case ValueType::bfloat16: return list_row<ValueType::bfloat16>(args);
    case ValueType::float16: return list_row<ValueType::float16>(args);
    case ValueType::int8: break;
  }
  return list_row<ValueType::int8>(args);
}

}  // namespace sift::cpu::SIFT_ISA
