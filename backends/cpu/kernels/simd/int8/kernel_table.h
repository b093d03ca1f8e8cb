// The functions of sparse int8 that exist once per instruction set, and the arguments they take.
//
// A quad is four adjacent channels of one position: four bytes, u8 of activations and s8 of weights, whose products are
// added to one 32-bit sum. A block is 16 positions: of activations 64 bytes for each quad, of sums 16 words for each
// row of weights. Sums wrap around, as onnxruntime's do.
//
// As in simd/kernel_table.h, nothing but these plain structures crosses between the translation units and the rest. All
// of them round alike, so that results have the same bits in every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sift::cpu {

inline constexpr std::int64_t kQuad = 4;
inline constexpr std::int64_t kQuadBlock = 16;   // positions
inline constexpr std::int64_t kBlockBytes = 64;  // of a quad's

// Rows [row_begin, row_end) of lists of live quads, times `blocks` blocks of operands. Sums are
// [blocks][group_rows][16]; the first is that of row_begin.
struct QuadRowsArgs {
  const std::uint8_t* panel;   // the first block's operands, aligned to 64 bytes
  std::ptrdiff_t block_bytes;  // from one block's operands to the next
  std::int64_t blocks;
  const std::uint32_t* starts;   // [rows + 1]
  const std::uint32_t* columns;  // operands of 64 bytes from the block's first
  const std::uint32_t* quads;    // of weights
  const std::int32_t* bias;      // [rows]
  std::int32_t* sums;
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t group_rows;
};

// The same with lists in SELL-C-sigma: kSellRows rows side by side, the longest list of a group first. Zeros make their
// lists equally long.
inline constexpr std::int64_t kSellRows = 4;
struct SellQuadsArgs {
  const std::uint8_t* panel;  // as in QuadRowsArgs, and so are those that follow
  std::ptrdiff_t block_bytes;
  std::int64_t blocks;
  std::int64_t tile_blocks;      // whose operands of a row's list stay in the first-level cache together
  const std::uint32_t* starts;   // [rows / kSellRows + 1], of the group
  const std::uint16_t* columns;  // of operands, with kOffsetSlack behind
  const std::uint32_t* quads;
  const std::uint8_t* order;  // [rows], of the group's rows
  const std::int32_t* bias;   // [rows]
  std::int32_t* sums;         // [blocks][group_rows][16]
  std::int64_t rows;          // of the group, in whole kSellRows
  std::int64_t group_rows;
};

// onnxruntime's QLinearAdd: clamp(round(own own_factor + (other other_factor + shift))), each step rounded once, where
// `own` and `other` are the stored bytes. What is in brackets may be a number of each channel.
struct QuadAddition {
  float own_factor;
  float other_factor;
  float shift;
};

// Rows of one block: clamp(round(sum multiplier / divisor)) + zero_point, half to even, in [low, high] of u8; then the
// addition, if there is one, in [low, high] in turn. The product and the quotient are floats, rounded each.
struct RequantizeArgs {
  const std::int32_t* sums;  // [rows][16]
  std::int64_t rows;
  const float* multipliers;
  float divisor;
  float zero_point;
  float low;
  float high;
  const QuadAddition* addition;  // null: none; low and high are then those of its result
  const std::uint8_t* other;     // quads of 64 bytes
  const float* rests;            // [rows], in the place of what is made of `other`; null: none
  std::uint8_t* out;             // quads of 64 bytes; bytes of rows past the last are zero
};

// Rows of one block: out = clamp(sum multiplier + bias + other), [rows][16] as `other`.
struct DequantizeArgs {
  const std::int32_t* sums;
  std::int64_t rows;
  const float* multipliers;
  float common;                 // multiplies every multiplier first
  const float* bias;            // null: none
  const float* other;           // null: none; may be `out`
  std::ptrdiff_t other_stride;  // from one row to the next
  float low;
  float high;
  float* out;
  std::ptrdiff_t stride;
};

// The operands of all taps of one block of output positions: [taps][quads][16][4].
struct GatherTapsArgs {
  const std::uint8_t* in;
  std::int64_t quads;
  // Of each lane, what its tap at (0, 0) reads: position among all images, row and column, which may lie outside.
  const std::int32_t* positions;
  const std::int32_t* ys;
  const std::int32_t* xs;
  std::int32_t height;
  std::int32_t width;
  std::span<const std::int32_t> tap_ys;
  std::span<const std::int32_t> tap_xs;
  std::uint8_t fill;  // what taps outside of the image read
  std::uint8_t* out;
};

// Sums of each of four channels over adjacent positions.
struct SumPositionsArgs {
  const std::uint8_t* in;      // the quad, in the first block of all positions
  std::ptrdiff_t block_bytes;  // from one block of positions to the next
  std::int64_t first;          // position
  std::int64_t count;
  std::int32_t* sums;  // [4], which are added to
};

// One block of positions from or to plain values, channel by channel.
struct PlainBlock {
  const std::int64_t* lanes;  // [16], of each position's first channel, in values
  std::int64_t count;         // of positions
  bool contiguous;            // lanes[i] is lanes[0] + i
  std::int64_t channel_stride;
  std::int64_t channels;
};

// Blocks that follow each other in the plain values, channel by channel: lines of a channel are read in a row.
struct QuantizeArgs {
  const float* in;
  PlainBlock first;  // whole and contiguous where there are several
  std::int64_t blocks;
  float scale;
  float zero_point;
  std::uint8_t* out;
  std::ptrdiff_t out_step;  // bytes from one block to the next
};

// out = clamp(round(a own_factor + (b other_factor + shift))), in [low, high] of u8, see QuadAddition.
struct AddQuadsArgs {
  const std::uint8_t* a;
  const std::uint8_t* b;
  std::uint8_t* out;
  std::int64_t blocks;  // of 64 bytes
  QuadAddition addition;
  float low;
  float high;
};

struct Int8Kernels {
  // Whether generated code may use this instruction set's registers.
  bool runs_generated;
  // Magnitude up to which `rows` multiplies weights; more is shared by several quads of a column.
  int most_weight;

  void (*rows)(const QuadRowsArgs&);
  void (*sell_rows)(const SellQuadsArgs&);  // null: none
  void (*requantize)(const RequantizeArgs&);
  void (*dequantize)(const DequantizeArgs&);
  void (*gather_taps)(const GatherTapsArgs&);
  // [taps][16][4] of one to three channels to quads that taps share, see share.h.
  void (*share_taps)(const std::uint8_t* taps, std::int64_t count, std::int64_t channels, std::uint8_t* out);
  // The maxima of what `gather_taps` gives, [quads][16][4]; outside of the image is the least byte, 0. `args.out` is
  // scratch memory for the taps.
  void (*max_taps)(const GatherTapsArgs& args, std::uint8_t* out);
  void (*sum_positions)(const SumPositionsArgs&);
  void (*quantize)(const QuantizeArgs&);
  void (*dequantize_bytes)(const std::uint8_t* in, const PlainBlock& block, float scale, std::int32_t zero_point,
                           float* out);
  // `flip` is 0x80 where plain bytes are signed, else 0.
  void (*from_bytes)(const std::uint8_t* in, const PlainBlock& block, std::uint8_t flip, std::uint8_t* out);
  void (*to_bytes)(const std::uint8_t* in, const PlainBlock& block, std::uint8_t flip, std::uint8_t* out);
  // The least and the largest of `count` floats and of what is in the two.
  void (*extremes)(const float* in, std::int64_t count, float& least, float& most);
  // Those of the first `lanes` of each of `count` vectors of 16 floats, of 0, and of what is in the two.
  void (*extremes_of_lanes)(const float* in, std::int64_t count, std::int64_t lanes, float& least, float& most);
  void (*add)(const AddQuadsArgs&);
  void (*look_up)(const std::uint8_t* in, const std::uint8_t* table, std::int64_t count, std::uint8_t* out);
};

// Null if the kernels of this name are not in this build: avx512_vnni, avx_vnni, avx2_madd, neon_i8mm, neon_dot,
// neon_mull, portable.
const Int8Kernels* find_int8_kernels(const char* name);

}  // namespace sift::cpu
