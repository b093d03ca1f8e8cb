// The functions that exist once per instruction set, and the arguments they take.
//
// The translation units behind a table are compiled with feature flags that the machine may lack. Nothing but these
// plain structures crosses between them and the rest: an inline function of the standard library that both sides
// instantiate could otherwise be linked in its AVX-512 version and called by the portable code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/activation.h"
#include "simd/packed/row_kernels.h"
#include "simd/train/lane_kernels.h"

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

// Where sums of integers go that become bytes: [blocks][quads of rows][16][4], each as in simd/int8/requantize.h.
// Products of sums and multipliers, and numbers of the addition, are below 2^31.
struct QuadOutput {
  const float* multipliers;  // [rows]
  std::int32_t zero_point;   // of what is rounded
  // clamp(round(own own_factor + (other other_factor + shift))).
  const std::byte* other;  // null: none; else as `out`
  float own_factor;
  float other_factor;
  float shift;
  // Bounds of what is stored.
  std::uint8_t low;
  std::uint8_t high;
  std::byte* out;              // of the first block and row
  std::ptrdiff_t block_bytes;  // from one block to the next
};

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
  const float* values;                // one per offset; csr_pairs: two in what both have; dense: [rows / 4][columns][4]
  std::uint32_t columns;              // dense: columns of the slice
  bool one_tap;                       // a column's operands follow those of the column before
  std::uint32_t lists_per_row;        // csr_by_tap
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
  Prefetcher* ahead;           // code: what comes after these rows
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

// Lanes copied into a panel. Entries are the same for every channel.
struct Gather {
  std::ptrdiff_t source;  // floats from the channel's first
  std::uint32_t target;   // floats from the channel's part of the panel
  std::uint32_t mask;     // bit per lane, adjacent; the lanes left out stay as they are
};

// Copies `count` entries for each of `channels` channels. Lane l of an entry comes from source + l * lane_stride.
struct GatherArgs {
  const Gather* entries;
  std::uint32_t count;
  std::uint32_t width;  // lanes per entry: 16, 8 or 4
  std::uint32_t lane_stride;
  const float* source;
  std::ptrdiff_t source_stride;  // floats from one channel to the next
  float* target;
  std::ptrdiff_t target_stride;
  std::uint32_t channels;
};

struct Scatter {
  std::ptrdiff_t target;  // floats from the output channel's first
  std::uint32_t source;   // floats from the start of the accumulator row
  std::uint32_t lanes;    // this many, from the first on, are stored
};

struct EpilogueArgs {
  const Scatter* entries;
  std::uint32_t count;
  const float* acc;
  std::ptrdiff_t acc_stride;  // floats per accumulator row
  const float* residual;      // null: none
  float* out;
  std::ptrdiff_t out_stride;   // floats from one output channel to the next, of residual too
  const std::uint16_t* order;  // [rows], which rows of acc, out and residual; null: the first ones
  std::uint32_t rows;
  Activation activation;
  bool non_temporal;  // stores of whole blocks; all places are aligned then
};

// What a sliding window does with its taps.
enum class WindowKind : std::uint8_t { weighted_sum, sum, maximum };

// Rows of output blocks whose windows lie wholly inside the input or its padded copy, and are cut alike.
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
  bool non_temporal;  // stores of whole blocks; all places are aligned then
};

// Winograd's convolution, see winograd.h.
inline constexpr int kWinogradRows = 8;     // of weights, interleaved
inline constexpr int kWinogradPoints = 36;  // 6 x 6
inline constexpr float kWinogradInner = 0.75F;
inline constexpr float kWinogradOuter = 1.5F;

// kWinogradRows rows of weights times the points of 16 tiles.
struct WinogradArgs {
  const float* points;   // [36][phases][16], aligned to 64 bytes
  const float* weights;  // [36][phases][kWinogradRows]
  std::int64_t phases;
  int outputs;        // of a tile along an axis: 3 or 4
  bool in_turns;      // tiles are adjacent: a row of outputs is that of the first, that of the second, ...
  const float* bias;  // [kWinogradRows]
  float* out;         // [kWinogradRows][outputs][outputs][16], or in turns [..][outputs][16 outputs]; aligned
};

// Where a tile's outputs go that lie in the window of one pooled pixel.
struct PoolPart {
  std::ptrdiff_t target;  // floats from the output channel's first
  std::uint32_t source;   // floats from the first of a row's sums
  std::uint16_t rows;     // of the window, in this tile
  std::uint16_t columns;
  bool is_first;  // nothing is in the maximum yet
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

enum class BinaryKind : std::uint8_t { first, add, subtract, multiply };

// out = activation(a * scale + shift), or activation(a op b)
struct ElementwiseArgs {
  BinaryKind kind;
  const float* a;
  const float* b;  // null for `first`
  bool repeats_b;  // `b` is a block of 16, for all blocks of `a`, which are whole
  float scale;     // of `first`
  float shift;
  float* out;
  std::int64_t count;
  Activation activation;
};

// Adjacent lanes of a block that come from adjacent floats.
struct SourceRun {
  std::int64_t source;  // floats, of the first of them
  std::int32_t lane;    // the first one
  std::int32_t count;
};

// out[c out_step + lane] = in[source of the lane + channels[c]], for the lanes of the runs; others keep their values.
struct RearrangeArgs {
  const float* in;
  const SourceRun* runs;
  std::int64_t run_count;        // up to 16, of at least a lane each
  const std::int64_t* channels;  // floats from a lane's source
  std::int64_t channel_count;
  bool channels_adjacent;
  float* out;
  std::ptrdiff_t out_step;
};

// Rows of sparse weights times up to 16 vectors, which lie interleaved: x[column][width].
struct StreamArgs {
  const float* x;
  std::uint32_t width;          // 1, 4, 8 or 16
  const std::uint32_t* starts;  // [rows + 1]
  const std::uint16_t* columns;
  const float* values;
  std::uint32_t row_begin;
  std::uint32_t row_end;
  const float* bias;  // null: continue from acc
  float* acc;         // [rows][width]
};

// out = (x - mean) / sqrt(variance + epsilon) * scale + shift over the channels; the mean counts as zero if the result
// is not centered.
struct NormalizeArgs {
  const float* x;
  float* out;          // may be x
  const float* scale;  // [channels]
  const float* shift;  // [channels]
  std::int64_t channels;
  float epsilon;
  bool is_centered;
};

// softmax(queries keys^T scale + mask) values, of one head and a few blocks of queries. A tensor's channels begin at
// the head's first, its rows at the block that holds the first one; keys and queries are counted from there.
struct AttentionArgs {
  const float* queries;
  const float* keys;
  const float* values;
  float* out;
  std::ptrdiff_t query_stride;  // floats from one block of 16 rows to the next
  std::ptrdiff_t key_stride;
  std::ptrdiff_t value_stride;
  std::ptrdiff_t out_stride;
  std::int64_t depth;        // channels of queries and keys
  std::int64_t value_depth;  // channels of values and out
  std::int64_t blocks;       // of queries, up to most_query_blocks
  std::int64_t first_query;  // whose result is stored
  std::int64_t end_query;
  std::int64_t first_key;  // in the first block
  std::int64_t end_key;
  float scale;
  bool nan_to_zero;  // what queries get whose weights are NaN
  bool mask_by_query;
  const float* mask;  // null: none; [keys], or by query [blocks][keys][16]
  float* panel;       // scratch: [depth][blocks][16]
  float* scores;      // scratch: [end_key, in whole blocks][blocks][16]
  float* sums;        // scratch: [value_depth][blocks][16]
};

// Half of a small first-level cache.
inline constexpr int kLoopOperands = 4096;

// A product of dense rows and a block of 16 tokens, see dense_product.h; added to up to two sums.
struct DenseTileArgs {
  const float* weights;   // [depth][dense_rows]
  const float* operands;  // [depth][16], aligned to 64 bytes
  std::int64_t depth;
  struct Target {
    float* sums;  // [dense_rows][16], aligned to 64 bytes; null: none
    float sign;
  };
  Target targets[2];
  const float* ahead;  // what is fetched meanwhile, a line of 64 bytes per step of the depth
  std::int64_t ahead_lines;
};

// out = first * first_scales + second * second_scales, [count / 16][16], all aligned to 64 bytes.
struct CombineArgs {
  const float* first;
  const float* first_scales;  // [16]
  const float* second;
  const float* second_scales;  // [16]
  float* out;
  std::int64_t count;  // a multiple of 16
};

// out = activation(sums * row_scales * lane_scales + bias + residual), [rows][16], all aligned to 64 bytes.
struct DenseFinishArgs {
  const float* sums;
  const float* row_scales;   // [rows]
  const float* lane_scales;  // [16]
  const float* bias;         // [rows]
  const float* residual;     // null: none
  float* out;
  std::int64_t rows;
  Activation activation;
  bool non_temporal;  // stores
};

// Blocks of 16 floats, aligned to 64 bytes; steps, in floats, are from one to the next.
struct BlockCopy {
  const float* from;  // null: zeros
  float* to;
  std::int64_t count;
  std::ptrdiff_t from_step;
  std::ptrdiff_t to_step;
};

// Sums of a weight gradient: adjacent positions of a tile, in panels that are aligned to 64 bytes.
inline constexpr int kMostGradientSlots = 12;
struct GradientLine {
  const float* x;  // of the panel's first column
  const float* dy;
  std::uint64_t count;  // of blocks of 16 lanes
};
// Blocks of gradient_rows(slots) rows with up to `slots` weights each. `sums` of a block begin at a multiple of 16.
struct GradientRun {
  int slots;
  std::uint32_t blocks;
  const std::uint32_t* offsets;  // [blocks][rows][slots], floats from a line's `x` to the column's operands
  const std::uint32_t* rows;     // [blocks][rows], floats from `dy` to the row's gradients
  float* sums;                   // [blocks][rows * slots, in whole 16s], added to
};

// Arguments of kernels that store with every step come by value: behind a reference, each store might change them as
// far as the compiler knows, and it would read them again. Rows and streams store once per list: there copying them
// takes longer.
struct KernelTable {
  // The kernel for csr, csr_pairs or dense, and a tile of `rows` x `columns` blocks; null if the registers do not hold
  // it. The blocks of a tile row are contiguous in the panel.
  RowsFunction (*rows)(WeightForm form, int rows, int columns);
  // For csr's tiles whose sums are too few for one row at a time; null for others, and `rows` is null for these.
  SellRows (*sell_rows)(int rows, int columns);
  // For csr_by_tap and one row of blocks: the operands of a list are rotated by a few lanes before they are multiplied.
  // Null where rotating takes longer than it saves.
  RowsFunction (*rotated_rows)(int columns);
  // For one row of blocks of 8 lanes; one of the two for each number of them. If taps overlap, blocks are 64 bytes
  // apart and operands not aligned.
  RowsFunction (*narrow_rows)(int blocks, bool taps_overlap);
  SellRows (*narrow_sell_rows)(int blocks, bool taps_overlap);
  int vec_bytes;  // of a register
  // Whether generated code may use this instruction set's registers.
  bool runs_generated;
  // Density from which csr_pairs is faster than csr.
  double pair_above;
  void (*gather_full)(GatherArgs);  // every lane of every entry is copied
  void (*gather_masked)(GatherArgs);
  void (*end_non_temporal_stores)();  // before other threads read what was stored
  void (*epilogue)(EpilogueArgs);

  // out[i][lane] = in[lane * stride + i] for i < count, lanes from `rows` on zero; and back, for `rows` lanes. With
  // non-temporal stores out and what is written of it row by row are aligned to 64 bytes.
  void (*interleave)(const float* in, std::ptrdiff_t stride, std::int64_t count, int rows, float* out,
                     bool non_temporal);
  void (*deinterleave)(const float* in, std::ptrdiff_t stride, std::int64_t count, int rows, float* out,
                       bool non_temporal);

  void (*rearrange)(RearrangeArgs);

  void (*window)(WindowKind kind, WindowArgs);
  void (*elementwise)(ElementwiseArgs);
  void (*stream)(const StreamArgs&);
  void (*normalize_row)(NormalizeArgs);    // x [channels]
  void (*normalize_lanes)(NormalizeArgs);  // x [channels][16], each lane by itself; aligned to 64 bytes

  // 6 x 6 pixels of each phase, [phases][36][16], to their points, [36][phases][16].
  void (*winograd_input)(const float* patch, std::int64_t phases, float* points);
  void (*winograd_rows)(const WinogradArgs&);
  void (*pool_tile)(PoolArgs);

  void (*dense_tile)(const DenseTileArgs&);
  std::int64_t dense_rows;
  void (*combine)(CombineArgs);
  // Of each of 16 lanes, [count / 16][16]: the largest magnitude, NaN if a value is not finite. All aligned to 64
  // bytes.
  void (*lane_magnitudes)(const float* in, std::int64_t count, float* out);
  void (*dense_finish)(DenseFinishArgs);

  void (*attend)(const AttentionArgs&);
  // Keys and values in rows, each as many floats apart as its stride says.
  void (*attend_rows)(const AttentionArgs&);  // blocks of queries out of `panel`; the result is in `sums`
  void (*attend_row)(const AttentionArgs&);   // one query out of `panel`, [depth]
  std::int64_t most_query_blocks;

  LaneKernels lanes;

  // What every machine with this instruction set runs; see packed_row_kernels.
  PackedRowKernels packed_rows;

  // even[i] = from[2 i], odd[i] = from[2 i + 1].
  void (*split_pairs)(const float* from, std::int64_t pairs, float* even, float* odd);

  void (*copy_blocks)(std::span<const BlockCopy> copies);
  void (*weight_gradient)(std::span<const GradientLine> lines, const GradientRun& run);
  int (*gradient_rows)(int slots);  // up to kMostGradientSlots

  // Nothing but independent multiply-adds, `peak_flops` operations per iteration.
  float (*fma_loop)(std::int64_t iterations);
  // The same, with an operand of each out of `operands`, kLoopOperands floats aligned to 64 bytes.
  float (*fma_load_loop)(const float* operands, std::int64_t iterations);
  std::int64_t peak_flops;
};

// Null if the kernels for this instruction set are not in this build.
const KernelTable* find_kernels(const char* isa);

// Those of `kernels`; if `extended`, those with instructions beyond avx512, where that is its instruction set and this
// machine has them.
const PackedRowKernels& packed_row_kernels(const KernelTable& kernels, bool extended);

}  // namespace sift::cpu
