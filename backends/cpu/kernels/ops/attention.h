// Scaled dot-product attention over several heads, of sequences whose tokens are the rows of a matrix.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// The channels of an operand: `count` in all, those of the first head from `first` on, the other heads' after them.
struct HeadChannels {
  std::int64_t count = 0;
  std::int64_t first = 0;
};

// Throws std::invalid_argument that names `op` if there are no channels for `heads` of `depth`.
inline void check_head_channels(const std::string& op, const HeadChannels& channels, std::int64_t heads,
                                std::int64_t depth) {
  if (channels.first < 0 || channels.count > kMostElements || channels.first > channels.count ||
      heads > (channels.count - channels.first) / depth) {
    throw std::invalid_argument(op + ": an operand has no channels for all heads");
  }
}

// Sizes of the mask; each is that of the scores, or 1. Fewer masks than sequences are taken in turn.
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
  std::int64_t key_tokens = 1;  // of each sequence, with a key and a value
  std::int64_t heads = 1;
  std::int64_t depth = 1;        // channels of a head's queries and keys
  std::int64_t value_depth = 1;  // channels of a head's values
  float scale = 1;
  std::vector<float> head_scales;  // besides, one per head; none: 1
  HeadChannels queries;
  HeadChannels keys;
  HeadChannels values;
  std::optional<MaskShape> mask;  // added to the scores
  bool nan_to_zero = false;       // what a token gets whose weights are NaN, since it attends to nothing
  // See AttentionRoundings.
  std::vector<Rounding> score_roundings;
  std::vector<Rounding> masked_roundings;
  std::vector<Rounding> weight_roundings;
  Layout layout = Layout::nchw_n16;
};

// For each sequence and head softmax(queries keys^T scale + mask) values, with the softmax over the keys. Input, second
// and third operand are queries, [sequences tokens][channels], keys and values, [sequences key_tokens][channels]; the
// result is [sequences tokens][heads value_depth], of zeros where there are no keys. Operands may be the same tensor.
class Attention final : public Op {
 public:
  // Throws std::invalid_argument for a size below one (there may be no sequences, tokens or keys), for heads that an
  // operand has no channels for, for a mask that does not fit the scores, and for a rounding by no positive and finite
  // steps and scale, or to bounds that are not in order or too large.
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
