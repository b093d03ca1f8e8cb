// Elementwise operators, normalization and attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/activation.h"

namespace sift::cpu {

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

// out = (x - mean) / sqrt(variance + epsilon) * scale + shift over the channels; the mean counts as zero if the result
// is not centered, and the variance as no less than `least`.
struct NormalizeArgs {
  const float* x;
  float* out;          // may be x
  const float* scale;  // [channels]
  const float* shift;  // [channels]
  std::int64_t channels;
  std::int64_t stride;  // in the lanes: floats of x from one channel to the next
  std::int64_t out_stride;
  float epsilon;
  float least;
  bool is_centered;
};

// What quantizing and dequantizing leaves of a number: scale * clamp(round(x steps), low, high), half to even. The
// bounds are below 2^22.
struct Rounding {
  float steps = 1;  // of a unit
  float scale = 1;
  float low = 0;
  float high = 0;
};

// Where a quantized model rounds, each one after the other.
struct AttentionRoundings {
  std::span<const Rounding> scores;   // before the mask
  std::span<const Rounding> masked;   // before the softmax
  std::span<const Rounding> weights;  // behind it
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
  float softcap;     // of a cache: a score s becomes softcap tanh(s / softcap) before the mask; 0: it stays
  bool nan_to_zero;  // what queries get whose weights are NaN
  bool mask_by_query;
  const float* mask;  // null: none; [keys], or by query [blocks][keys][16]
  AttentionRoundings roundings;
  bool asks_for_values;    // of a single query: while its scores are summed, values are asked for
  const float* next_keys;  // of a single query: what is asked for while values are weighed; null: nothing
  float* panel;            // scratch: [depth][blocks][16]
  float* scores;           // scratch: [end_key, in whole blocks][blocks][16]
  float* sums;             // scratch: [value_depth][blocks][16]
};

}  // namespace sift::cpu
