// Sparse weights with sixteen rows in the lanes (sliced ELLPACK), which are so few that looking activations up in
// registers is faster than bringing values to their columns.
//
// A window of 64 columns slides along the rows of a block. While it is at one place, each lane takes up to two of its
// row's next weights that lie in the window: a pair of steps. Lanes that have none there take none, and a row may be
// ahead of others by as much as the window is wide.
//
//   bytes 0 to 31    for each step and lane: where in the window the weight's column is, or kNoWeight
//   bytes 32 on      likewise the values; zero where there is none
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/value_type.h"

namespace sift::cpu {

// Rows of a block.
inline constexpr std::int64_t kWindowRows = 16;
inline constexpr std::int64_t kWindowColumns = 64;
inline constexpr int kPairSteps = 2;
inline constexpr std::int64_t kPairWeights = kPairSteps * kWindowRows;
// Of a place and a value for each.
static inline constexpr std::int64_t pair_bytes(ValueType type) {
  return kPairWeights * static_cast<std::int64_t>(1 + bytes_of(type));
}
// Where a window begins is a multiple of these.
inline constexpr std::int64_t kMoveColumns = 16;
// Columns that a window moves by at most from one pair to the next.
inline constexpr std::int64_t kMostMoved = 255 * kMoveColumns;

// A column of the window's upper half, whose lower bits are those of the column within the half.
inline constexpr std::uint8_t kUpperHalf = 0x80;
inline constexpr std::uint8_t kNoWeight = 0x20;

struct ColumnWindows {
  const std::byte* pairs;     // pair_bytes() each
  const std::uint8_t* moves;  // of each pair: what the window moves by before it, in kMoveColumns
  const std::size_t* starts;  // [blocks + 1], pairs at which a block begins; null: the weights have another form
  ValueType type;             // of values
};

// Kernels of all instruction sets include this file. Functions are static, so that each set has its own copies.

static inline constexpr std::uint8_t window_place(std::int64_t column) {
  return static_cast<std::uint8_t>(column % 32 + (column < 32 ? 0 : kUpperHalf));
}

static inline constexpr std::int32_t window_column(std::uint8_t place) {
  return place % 32 + (place & kUpperHalf) / (kUpperHalf / 32);
}

// Calls take(pair, column at which the window begins) for the pairs of a block whose windows meet columns [first, end).
template <typename Take>
static inline void for_each_pair(const ColumnWindows& windows, std::int64_t block, std::int64_t first, std::int64_t end,
                                 Take take) {
  const std::int64_t bytes = pair_bytes(windows.type);
  std::int64_t base = 0;
  for (std::size_t pair = windows.starts[block]; pair < windows.starts[block + 1]; ++pair) {
    base += windows.moves[pair] * kMoveColumns;
    if (base >= end) return;
    if (base + kWindowColumns > first) take(windows.pairs + static_cast<std::int64_t>(pair) * bytes, base);
  }
}

// Calls take(lane, column, where its value is) for the weights of a block, those of each lane in order.
template <typename Take>
static inline void for_each_in_windows(const ColumnWindows& windows, std::int64_t block, std::int64_t columns,
                                       Take take) {
  const auto size = static_cast<std::int64_t>(bytes_of(windows.type));
  for_each_pair(windows, block, 0, columns, [&](const std::byte* pair, std::int64_t base) {
    for (std::int64_t i = 0; i < kPairWeights; ++i) {
      const auto place = static_cast<std::uint8_t>(pair[i]);
      if ((place & kNoWeight) != 0) continue;
      take(i % kWindowRows, base + window_column(place), pair + kPairWeights + i * size);
    }
  });
}

}  // namespace sift::cpu
