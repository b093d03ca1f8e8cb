// Arguments of kernels with windows: sums and maxima of taps, and Winograd's convolution.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/activation.h"

namespace sift::cpu {

// The function of a window's taps.
enum class WindowKind : std::uint8_t { weighted_sum, sum, maximum };

// Rows of output blocks whose windows are inside the input or its padded copy, and have the same taps.
struct WindowArgs {
  std::uint32_t rows;
  std::ptrdiff_t row_step;  // floats from one row's operands to the next's
  std::ptrdiff_t out_row_step;
  const float* in;
  const std::ptrdiff_t* taps;  // [tap_count] floats from `in`
  const float* weights;        // [tap_count], of weighted_sum
  std::uint32_t tap_count;
  std::ptrdiff_t step;  // floats from one block's operands to the next's
  float start;          // bias, 0, or the least float
  float scale;          // of sum
  const float* scales;  // of sum, one per output float; null: `scale`
  float* out;
  std::ptrdiff_t out_step;  // floats from one block's output to the next's
  std::uint32_t blocks;
  std::uint32_t lanes;       // stored of each block but the last
  std::uint32_t last_lanes;  // stored of the last block
  // Input rows, of contiguous blocks, that are prefetched for the next output row.
  std::uint32_t ahead_rows;
  std::ptrdiff_t ahead;        // floats from a block's operands to the first of these rows
  std::ptrdiff_t ahead_pitch;  // floats from one of them to the next
  Activation activation;
  bool non_temporal;  // stores whole blocks non-temporally; all addresses are then aligned
  // The side of a square window, 3 or 5 and at most `largest_square`, for weighted sums in which every tap of the
  // square is active. Its rows are `row_step` apart. Otherwise 0.
  std::int64_t square;
};

// The windows of a plane with as many columns as the output, in blocks of lanes that continue from row to row.
struct MaskedWindowArgs {
  const float* in;               // the position of the first output in the plane
  const std::ptrdiff_t* window;  // of each tap of the window: floats from an output to its operand
  const std::uint16_t* masks;    // [taps of the window][blocks]: the lanes whose operands are inside the plane
  const std::uint32_t* active;   // [tap_count] taps of the window; null: all of them
  const float* weights;          // [tap_count], of weighted_sum
  std::uint32_t tap_count;
  float start;    // bias, or the least float
  float outside;  // the operand of other lanes
  float* out;
  std::uint32_t blocks;
  std::uint32_t last_lanes;  // stored of the last block
  Activation activation;
};

// Rows of weighted sums with stride two along x, whose active taps are all in rows of the plane.
struct StridedWindowArgs {
  const float* in;               // the first column of the row that the first output's window begins in
  std::ptrdiff_t row_step;       // floats from one row's operands to the next's
  const std::ptrdiff_t* window;  // of each tap of the window: floats from `in` to the first operand
  // [taps of the window][blocks][2]: of the 32 pixels from a block's first operand on, those that are in the row
  const std::uint16_t* masks;
  const std::uint32_t* active;  // [tap_count] taps of the window
  const float* weights;         // [tap_count]
  std::uint32_t tap_count;
  float start;  // bias
  float* out;
  std::ptrdiff_t out_row_step;
  std::uint32_t rows;
  std::uint32_t blocks;
  std::uint32_t last_lanes;  // stored of the last block of a row
  Activation activation;
};

// Rows of maxima over neighbouring columns with stride two along x, whose tap rows are all rows of the plane.
struct StridedMaximumArgs {
  const float* in;               // as in StridedWindowArgs
  std::ptrdiff_t row_step;       // likewise
  const std::ptrdiff_t* window;  // [tap_rows][columns], likewise
  const std::uint16_t* masks;    // [columns][blocks][2], likewise
  std::uint32_t tap_rows;
  std::uint32_t columns;
  float start;  // the least float
  float* out;
  std::ptrdiff_t out_row_step;
  std::uint32_t rows;
  std::uint32_t blocks;
  std::uint32_t last_lanes;  // stored of the last block of a row
};

// Winograd's convolution, see winograd.h.
inline constexpr int kWinogradRows = 8;     // of weights, interleaved
inline constexpr int kWinogradPoints = 36;  // 6 x 6
inline constexpr float kWinogradInner = 0.75F;
inline constexpr float kWinogradOuter = 1.5F;

// A tile that reads an image.
struct WinogradTile {
  std::ptrdiff_t at;   // floats from the input's first to the tile's first pixel; may be outside of the image
  std::int32_t begin;  // of the pixels that it reads in a row, those of the image
  std::int32_t end;
};

// Rows of pixels of sixteen tiles: of each row, as many as a tile reads. They become lanes.
struct WinogradTilesArgs {
  const float* in;
  const WinogradTile* tiles;    // [16]
  const std::ptrdiff_t* rows;   // [count], floats from a tile's first pixel to that of a row
  const std::uint16_t* inside;  // [count], tiles whose row is one of the image, as bits; others read zeros
  std::int64_t count;
  const std::int64_t* places;  // [pixels], floats from a row's place to the 16 lanes of a pixel
  std::int64_t pixels;
  const std::int64_t* row_places;  // [count], floats from `to`
  float* to;
};

// Phases in columns, those of a column one after the other. A phase has as many taps as another along an axis, or one
// less; then what a tile's last points of this axis are multiplied by is zero. Those with all taps come first.
struct WinogradPhases {
  std::int64_t columns;
  std::int64_t rows;          // of a column
  std::int64_t full_columns;  // whose phases have all taps of a row
  std::int64_t full_rows;     // of each column, the phases that have all taps of a column

  std::int64_t count() const { return columns * rows; }
};

// kWinogradRows rows of weights times the points of 16 tiles.
struct WinogradArgs {
  const float* points;   // [6][phases][6][16], aligned to 64 bytes
  const float* weights;  // [6][phases][6][kWinogradRows]
  WinogradPhases phases;
  int outputs;        // of a tile along an axis: 3 or 4
  bool in_turns;      // tiles are adjacent: a row of outputs is that of the first, that of the second, ...
  const float* bias;  // [kWinogradRows]
  float* out;         // [kWinogradRows][outputs][outputs][16], or in turns [..][outputs][16 outputs]; aligned
};

// The destination of a tile's outputs that are in the window of one pooled pixel.
struct PoolPart {
  std::ptrdiff_t target;  // floats from the output channel's first
  std::uint32_t source;   // floats from the first of a row's sums
  std::uint16_t rows;     // of the window, in this tile
  std::uint16_t columns;
  bool is_first;  // the maximum has no value yet
};

// out = max(out, activation(sums)), pixel by pixel.
struct PoolArgs {
  const PoolPart* parts;
  std::uint32_t count;
  std::uint32_t tile;  // along an axis
  float* sums;         // [kWinogradRows][tile][tile][16], overwritten; aligned to 64 bytes, as is `out`
  float* out;
  std::ptrdiff_t out_stride;  // floats from one output channel to the next
  std::uint32_t rows;         // of sums that are stored
  Activation activation;
};

}  // namespace sift::cpu
