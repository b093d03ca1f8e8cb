// GatherElements, and integers as floats.
#pragma once

#include "base/op.h"

namespace sift::cpu {

// out[n][i][pixel] = in[n][indices[n][i][pixel]][pixel], for the channels of each row, or of each pixel of an image.
// The indices are the second operand, integers [n][count][h][w], or [n][count][1][1] if all pixels of an image have the
// same ones. Negative ones are counted from the end.
class GatherElements final : public Op {
 public:
  // Throws std::invalid_argument if `count` is negative.
  GatherElements(std::int64_t count, bool has_index_for_all);

  Shape output_shape(const Shape& in) const override { return {in.n, count_, in.h, in.w}; }
  Layout input_layout() const override { return Layout::nchw; }
  OtherSizes other_sizes(const Shape& in) const override;
  // Throws std::invalid_argument for an index that is none of a channel.
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  std::int64_t count_;
  bool has_index_for_all_;  // pixels of an image
};

// Integers as the nearest floats.
class CastIntegers final : public Op {
 public:
  Shape output_shape(const Shape& in) const override { return in; }
  Layout input_layout() const override { return Layout::integers; }
  Layout output_layout() const override { return Layout::nchw; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;
};

}  // namespace sift::cpu
