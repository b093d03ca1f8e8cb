// Rows of sparse or dense weights times panels, and times a few vectors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sift::cpu {

class Prefetcher;

// How a slice of the weights is stored and multiplied; see docs/cpu-runtime.md.
//
//   csr         a list of non-zeros per row
//   csr_by_tap  a list per row and tap along x, whose operands are rotated alike
//   sell        SELL-C-sigma (Kreutzer et al., "A Unified Sparse Matrix Data Format for Efficient General Sparse
//               Matrix-Vector Multiplication", SIAM J. Sci. Comput. 36(5), 2014): chunks of C = 2 or 4 interleaved
//               rows; the rows of a band (sigma) are sorted by length, and shorter lists padded with zeros
//   csr_pairs   for two rows the columns that both have, that the first has, that the second has
//   dense       all weights
//   code        machine instructions, see jit/generated_rows.h
//
// Asked of a convolution, csr stands for the three forms of lists: which of them is used depends on the tile.
enum class WeightForm : std::uint8_t { csr, csr_by_tap, sell, csr_pairs, dense, code };

// Machine code of some channels of a group of rows. That of the next channels follows.
struct CodeUnit {
  const std::byte* body;
  const float* weights;
  // Lines of what is executed next that the body prefetches for each block.
  std::uint32_t code_ahead;
  std::uint32_t weights_ahead;
};

// Where sums go that need nothing but bounds: whole blocks, evenly spaced in the output.
struct DirectOutput {
  float* out;                 // null: sums go to acc
  const float* residual;      // null: none
  std::ptrdiff_t row_stride;  // floats from one output channel to the next
  std::ptrdiff_t pitch;       // floats from one tile row to the next
  std::ptrdiff_t step;        // floats from one block of a tile row to the next
  float low;
  float high;
  bool non_temporal;  // stores; all places are aligned then
};

// Floats that are stored beside the bytes that they become: clamp(sum multiplier + residual), [blocks][rows][16].
struct FloatOutput {
  std::byte* out = nullptr;             // of the first block and row; null: none are stored
  const std::byte* residual = nullptr;  // as `out`, and may be that; null: none
  float low = 0;
  float high = 0;
  bool makes_bytes = false;  // quotients of the floats by the divisor, of any magnitude
};

// Where sums of integers go that become bytes: [blocks][quads of rows][16][4], each as in simd/int8/requantize.h.
// Quotients of sums times multipliers by the divisor, and numbers of the addition, are below 2^31.
struct QuadOutput {
  const float* multipliers;  // [rows]
  float divisor;             // 1, or one that divides_in_code() of int8/exact_quotients.h allows
  std::int32_t zero_point;   // of what is rounded
  // clamp(round(own own_factor + (other other_factor + shift))).
  const std::byte* other;  // null: none; else as `out`
  const float* rests;      // [rows], in the place of what is made of `other`; null: none
  float own_factor;
  float other_factor;
  float shift;
  // Bounds of what is stored.
  std::uint8_t low;
  std::uint8_t high;
  std::byte* out;              // of the first block and row
  std::ptrdiff_t block_bytes;  // from one block to the next
  FloatOutput floats = {};     // then nothing is added to bytes, and their bounds are 0 and 255
};

// Offsets behind the last one of lists that kernels may read.
inline constexpr std::size_t kOffsetSlack = 8;

// Rows [row_begin, row_end) of one slice of the weights times a panel: acc[row - row_begin] += or = bias + ...
// An accumulator row is `blocks` blocks of 16 floats. csr_pairs and dense need both ends to be multiples of 4.
// In sell, row_begin and row_end are positions in `order`, multiples of the rows per call, and acc and bias begin at
// the row that it counts from.
struct RowsArgs {
  const std::byte* panel;  // aligned to 64 bytes
  std::ptrdiff_t pitch;    // bytes from one panel row of blocks to the next
  // Where lists start: csr [rows + 1]; csr_by_tap [lists_per_row rows + 1]; sell [rows / rows per call + 1]; csr_pairs
  // [3 rows / 2 + 1].
  const std::uint32_t* starts;
  const std::uint32_t* value_starts;  // csr_pairs: [rows / 2]
  const std::uint16_t* offsets;       // bytes into the panel; dense: one per column of the slice
  // One per offset; csr_pairs: two in what both have; dense: those of the slice, in [rows / 4][row_columns][4].
  const float* values;
  std::uint32_t columns;        // dense: columns of the slice
  std::uint32_t row_columns;    // dense: of all slices
  bool one_tap;                 // a column's operands follow those of the column before
  bool scales_offsets;          // sell: offsets are those of a tile of one block, see Tiling
  std::uint32_t lists_per_row;  // csr_by_tap
  const std::int32_t*
      rotated_lanes;           // csr_by_tap: [lists_per_row][16], the lane of the operand that each lane multiplies
  const std::uint16_t* order;  // sell: [rows], the row at each position
  const CodeUnit* code;        // code: [groups + 1][units] and one more; the last group's are empty
  std::uint32_t units;         // code: of each group
  std::uint32_t first_unit;    // code: of the slice
  std::uint32_t end_unit;
  std::int64_t first_channel;  // code: of the slice, at which the panel begins
  const std::ptrdiff_t* taps;  // code: bytes from where a channel's first tap reads to where each does
  std::uint32_t group_rows;    // code: rows of each group but the last; row_begin is the first of one
  std::uint32_t tile_rows;     // code: of blocks, `pitch` apart
  std::uint32_t tile_columns;
  Prefetcher* ahead;           // code: what comes after these rows; null: nothing is prefetched
  std::int64_t ahead_lines;    // code: of it, for each group
  std::ptrdiff_t block_bytes;  // code: from one of a tile row to the next in the panel
  const QuadOutput* quads;     // code: of groups whose rows are a multiple of 4; null: sums go to acc
  const float* bias;           // null: continue from acc
  float* acc;                  // aligned to 64 bytes
  DirectOutput direct;         // of the row that acc begins at
  std::uint32_t row_begin;
  std::uint32_t row_end;
};
using RowsFunction = void (*)(const RowsArgs&);

// A kernel of the form sell; null if there is none.
struct SellRows {
  RowsFunction rows;
  int rows_per_call;  // C of SELL-C-sigma: 2 or 4
};

// Rows of sparse weights times up to 16 vectors, which lie interleaved: x[column][width].
struct StreamArgs {
  const float* x;
  std::uint32_t width;          // 1, 4, 8 or 16
  const std::uint32_t* starts;  // [rows + 1]
  const std::uint16_t* columns;
  const float* values;  // null where there are bytes
  const std::int8_t* bytes;
  std::uint32_t row_begin;
  std::uint32_t row_end;
  const float* scales;  // of rows; null: 1
  const float* bias;    // null: continue from acc
  float* acc;           // [rows][width]
};

}  // namespace sift::cpu
