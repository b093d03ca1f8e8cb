// Packed weights as the lists that micro-kernels for many rows take.
#pragma once

#include "simd/packed/list_places.h"
#include "simd/packed/list_windows.h"
#include "simd/packed/prefetch.h"
#include "simd/packed/row_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

inline void list_packed(const ListArgs& args) {
  if (args.windows.starts != nullptr) return list_windows(args);
  const std::size_t size = bytes_of(args.type);
  const auto unit = static_cast<std::uint16_t>(args.column_bytes);
  std::int64_t at = args.list_starts[0];
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const std::uint64_t* const masks = args.masks == nullptr ? nullptr : args.masks + row * args.words;
    const float* const scales = args.scales == nullptr ? nullptr : args.scales + row * args.groups;
    PlaceWriter<0, true> writer(unit, args.offsets + at);
    for (std::int64_t column = args.first_column; column < args.end_column; column += kWordColumns) {
      writer.add(active_bits(masks, args.words, column, args.end_column));
    }
    const std::int64_t count = writer.count();
    const std::byte* const values = args.values + args.starts[row] + args.taken[row] * size;
    if (args.group_columns != 0) {
      list_grouped_values(masks, args.words, args.first_column, args.end_column, scales, args.group_columns, values,
                          args.out + at);
    } else {
      list_values(args.type, values, count, scales == nullptr ? 1.0F : *scales, args.out + at);
    }
    if (args.ahead != 0) {
      const auto taken = static_cast<std::ptrdiff_t>(args.taken[row] * size);
      const auto bytes = count * static_cast<std::int64_t>(size);
      prefetch_lines(args.values + args.starts[row + args.ahead] + taken, bytes / 64 + 1);
      if (masks != nullptr) {
        const std::int64_t words = (args.end_column - args.first_column) / kWordColumns;
        const std::uint64_t* const next = masks + args.ahead * args.words + args.first_column / kWordColumns;
        prefetch_lines(next, words / kLineWords + 1);
      }
    }
    args.taken[row] += static_cast<std::size_t>(count);
    at += count;
    args.list_starts[row + 1] = static_cast<std::uint32_t>(at);
  }
}

}  // namespace sift::cpu::SIFT_ISA
