// Rotary position embedding: pairs of channels of each head, turned by an angle of the token.
#pragma once

#include <cstdint>

#include "base/op.h"

namespace sift::cpu {

struct RotateOptions {
  std::int64_t heads = 1;
  std::int64_t depth = 2;       // channels of a head
  std::int64_t rotated = 2;     // how many of them are turned: the first ones
  bool is_interleaved = false;  // pairs are neighbours; otherwise half of the turned channels apart
  bool has_angle_each = false;  // cosines and sines for each channel, of pairs too; otherwise for each pair
  Layout layout = Layout::nchw;
};

// Input [tokens][heads depth]; second and third operand are cosines and sines, [tokens][rotated or half of it].
class Rotate final : public Op {
 public:
  // Throws std::invalid_argument for sizes below one, an odd number of turned channels, or more than there are.
  explicit Rotate(const RotateOptions& options);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return options_.layout; }
  OtherSizes other_sizes(const Shape& in) const override;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  RotateOptions options_;
};

}  // namespace sift::cpu
