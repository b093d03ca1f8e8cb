// Scaled dot-product attention with several heads. The tokens of a sequence are rows of a matrix.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// The channels of an operand: `count` in total. Those of the first head begin at `first`, the other heads follow.
struct HeadChannels {
  std::int64_t count = 0;
  std::int64_t first = 0;
};

// Throws std::invalid_argument, naming `op`, if there are not enough channels for `heads` of `depth`.
inline void check_head_channels(const std::string& op, const HeadChannels& channels, std::int64_t heads,
                                std::int64_t depth) {
  if (channels.first < 0 || channels.count > kMostElements || channels.first > channels.count ||
      heads > (channels.count - channels.first) / depth) {
    throw std::invalid_argument(op + ": an operand has no channels for all heads");
  }
}

// Sizes of the mask; each equals that of the scores, or is 1. If there are fewer masks than sequences, sequences cycle
// through them.
struct MaskShape {
  std::int64_t sequences = 1;
  std::int64_t heads = 1;
  std::int64_t queries = 1;
  std::int64_t keys = 1;

  std::int64_t size() const { return sequences * heads * queries * keys; }
};

struct AttentionOptions {
  std::int64_t sequences = 1;
  std::int64_t tokens = 1;      // of each sequence
  std::int64_t key_tokens = 1;  // of each sequence, each with a key and a value
  std::int64_t heads = 1;
  std::int64_t depth = 1;        // channels of a head's queries and keys
  std::int64_t value_depth = 1;  // channels of a head's values
  float scale = 1;
  std::vector<float> head_scales;  // additional factors, one per head; empty: 1
  HeadChannels queries;
  HeadChannels keys;
  HeadChannels values;
  std::optional<MaskShape> mask;  // added to the scores
  bool nan_to_zero = false;       // whether a token that attends to nothing gets zeros instead of NaN
  // See AttentionRoundings.
  std::vector<Rounding> score_roundings;
  std::vector<Rounding> masked_roundings;
  std::vector<Rounding> weight_roundings;
  Layout layout = Layout::nchw_n16;
};

// For each sequence and head: softmax(queries keys^T scale + mask) values, with the softmax over the keys. The input is
// queries, [sequences tokens][channels]; the second and third operands are keys and values, [sequences
// key_tokens][channels]. The result is [sequences tokens][heads value_depth]; without keys it is zero. Operands may be
// the same tensor.
class Attention final : public Op {
 public:
  // Throws std::invalid_argument for a size below one (sequences, tokens and keys may be zero), for more heads than an
  // operand has channels for, for a mask that does not fit the scores, and for a rounding whose steps and scale are not
  // positive and finite, or whose bounds are not in order or too large.
  Attention(const AttentionOptions& options, const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return options_.layout; }
  OtherSizes other_sizes(const Shape& in) const override;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  std::int64_t rows() const { return options_.sequences * options_.tokens; }
  std::int64_t key_rows() const { return options_.sequences * options_.key_tokens; }
  void run_lanes(ThreadPool& pool, const float* queries, const float* keys, const float* values, const float* mask,
                 float* out) const;
  const float* tile_mask(const float* mask, std::int64_t sequence, std::int64_t head, std::int64_t first_query,
                         std::int64_t blocks) const;

  AttentionOptions options_;
  const KernelTable& kernels_;
};

}  // namespace sift::cpu
