// Rotary position embedding: rotates pairs of channels of each head by an angle per token.
#pragma once

#include <cstdint>

#include "base/op.h"

namespace sift::cpu {

struct RotateOptions {
  std::int64_t heads = 1;
  std::int64_t depth = 2;       // channels of a head
  std::int64_t rotated = 2;     // number of channels that are rotated, from the first one on
  bool is_interleaved = false;  // pairs are adjacent; otherwise they are half of the rotated channels apart
  bool has_angle_each = false;  // a cosine and a sine for each channel; otherwise for each pair
  Layout layout = Layout::nchw;
};

// Input [tokens][heads depth]; the second and third operands are cosines and sines, [tokens][rotated or rotated / 2].
class Rotate final : public Op {
 public:
  // Throws std::invalid_argument for sizes below one, and for a number of rotated channels that is odd or exceeds
  // `depth`.
  explicit Rotate(const RotateOptions& options);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return options_.layout; }
  OtherSizes other_sizes(const Shape& in) const override;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  RotateOptions options_;
};

}  // namespace sift::cpu
