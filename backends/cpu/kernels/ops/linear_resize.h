// Resizes images: each pixel is interpolated from four pixels of the input.
#pragma once

#include <cstdint>
#include <vector>

#include "base/op.h"

namespace sift::cpu {

// Interpolation between two values of an axis: (1 - share) * [first] + share * [second].
struct Between {
  std::int64_t first = 0;
  std::int64_t second = 0;
  float share = 0;
};

// Linear interpolation along both axes, in each channel.
class LinearResize final : public Op {
 public:
  // Throws std::invalid_argument if an index is negative.
  LinearResize(std::vector<Between> rows, std::vector<Between> columns, Layout layout);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return layout_; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  std::vector<Between> rows_;
  std::vector<Between> columns_;
  std::int64_t end_row_;  // one more than the last row and column of the input
  std::int64_t end_column_;
  Layout layout_;
};

}  // namespace sift::cpu
