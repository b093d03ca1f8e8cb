// Sparse weights with sixteen rows in the lanes (sliced ELLPACK), which are so few that looking activations up in
// registers is faster than bringing values to their columns.
//
// A window of 64 columns slides along the rows of a block. It stops at some columns. A stop has two or four steps, and
// in each of them a lane takes its row's next weight if that lies in the window. A row may be ahead of others by as
// much as the window is wide.
//
// A stop has a byte for each step and lane that says where in the window the weight's column is, or kNoWeight, and then
// the values, zero where there is none. Those of a step are side by side, but bytes of a lane: an instruction adds up
// the products of four of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/value_type.h"

namespace sift::cpu {

// Rows of a block.
inline constexpr std::int64_t kWindowRows = 16;
inline constexpr std::int64_t kWindowColumns = 64;
static inline constexpr int steps_of(ValueType type) { return type == ValueType::int8 ? 4 : 2; }
// Weights of a stop, and bytes of their places and values.
static inline constexpr std::int64_t stop_weights(ValueType type) { return steps_of(type) * kWindowRows; }
static inline constexpr std::int64_t stop_bytes(ValueType type) {
  return stop_weights(type) * static_cast<std::int64_t>(1 + bytes_of(type));
}
// Which of a stop's weights a lane's is.
static inline constexpr std::int64_t stop_index(ValueType type, std::int64_t step, std::int64_t lane) {
  return type == ValueType::int8 ? lane * steps_of(type) + step : step * kWindowRows + lane;
}
// Where a window begins is a multiple of these.
inline constexpr std::int64_t kMoveColumns = 16;
// Columns that a window moves by at most from one stop to the next.
inline constexpr std::int64_t kMostMoved = 255 * kMoveColumns;

// A column of the window's upper half has its top bit as well, which instructions read.
inline constexpr std::uint8_t kUpperHalf = 0x80;
inline constexpr std::uint8_t kNoWeight = 0x40;

struct ColumnWindows {
  const std::byte* stops;     // stop_bytes() each
  const std::uint8_t* moves;  // of each stop: what the window moves by before it, in kMoveColumns; and one more
  const std::size_t* starts;  // [blocks + 1], stops at which a block begins; null: the weights have another form
  ValueType type;             // of values
};

// Kernels of all instruction sets include this file. Functions are static, so that each set has its own copies.

static inline constexpr std::uint8_t window_place(std::int64_t column) {
  return static_cast<std::uint8_t>(column + (column < 32 ? 0 : kUpperHalf));
}

static inline constexpr std::int32_t window_column(std::uint8_t place) { return place % kWindowColumns; }

// Calls take(stop, column at which the window begins) for the stops of a block whose windows meet columns [first, end).
template <typename Take>
static inline void for_each_stop(const ColumnWindows& windows, std::int64_t block, std::int64_t first, std::int64_t end,
                                 Take take) {
  const std::int64_t bytes = stop_bytes(windows.type);
  std::int64_t base = 0;
  for (std::size_t stop = windows.starts[block]; stop < windows.starts[block + 1]; ++stop) {
    base += windows.moves[stop] * kMoveColumns;
    if (base >= end) return;
    if (base + kWindowColumns > first) take(windows.stops + static_cast<std::int64_t>(stop) * bytes, base);
  }
}

// Calls take(lane, column, where its value is) for the weights of a block, those of each lane in order.
template <typename Take>
static inline void for_each_in_windows(const ColumnWindows& windows, std::int64_t block, std::int64_t columns,
                                       Take take) {
  const auto size = static_cast<std::int64_t>(bytes_of(windows.type));
  for_each_stop(windows, block, 0, columns, [&](const std::byte* stop, std::int64_t base) {
    const std::byte* const values = stop + stop_weights(windows.type);
    for (std::int64_t step = 0; step < steps_of(windows.type); ++step) {
      for (std::int64_t lane = 0; lane < kWindowRows; ++lane) {
        const std::int64_t i = stop_index(windows.type, step, lane);
        const auto place = static_cast<std::uint8_t>(stop[i]);
        if ((place & kNoWeight) != 0) continue;
        take(lane, base + window_column(place), values + i * size);
      }
    }
  });
}

}  // namespace sift::cpu
