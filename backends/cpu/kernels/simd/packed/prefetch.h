// Lines that are asked for before they are read: what processors prefetch by themselves ends with each page, and lags
// behind.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/packed/row_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// As far ahead as a core reads from memory at full rate while one line comes; farther, lines are gone before their turn
// (docs/cpu-kernel-notes.md).
inline constexpr std::ptrdiff_t kValuesAhead = 8192;
inline constexpr std::int64_t kMasksAhead = 256;

[[gnu::always_inline]] inline void prefetch_lines(const void* at, std::int64_t lines, bool into_level2 = false) {
  const auto* const line = static_cast<const std::byte*>(at);
  if (into_level2) {
#pragma GCC unroll 1
    for (std::int64_t i = 0; i < lines; ++i) __builtin_prefetch(line + 64 * i, 0, 2);
  } else {
#pragma GCC unroll 1
    for (std::int64_t i = 0; i < lines; ++i) __builtin_prefetch(line + 64 * i, 0, 3);
  }
}

// Those of a word far behind the ones at `values`.
[[gnu::always_inline]] inline void prefetch_values(const PackedRowsArgs& args, const std::byte* values) {
  prefetch_lines(values + kValuesAhead, args.lines_per_word, args.into_level2);
}

// The values of rows [row_begin, row_end), and of `behind` rows behind them, which are asked for: where they would be
// if these had the mean length.
inline void find_values(const PackedRowsArgs& args, std::int64_t row_begin, std::int64_t row_end, std::int64_t behind,
                        const std::byte** values) {
  const std::int64_t rows = row_end - row_begin;
  for (std::int64_t row = 0; row < rows; ++row) values[row] = args.values + args.starts[row_begin + row];
  const std::size_t mean = (args.starts[row_end] - args.starts[row_begin]) / static_cast<std::size_t>(rows);
  for (std::int64_t i = 0; i < behind; ++i) {
    values[rows + i] = args.values + args.starts[row_end] + static_cast<std::size_t>(i) * mean;
  }
}

}  // namespace sift::cpu::SIFT_ISA
