// Copies pixels of an image to other positions of the same channel: repetition, padding, cropping.
#pragma once

#include <cstdint>
#include <vector>

#include "base/op.h"

namespace sift::cpu {

// out[y][x] = in[rows[y]][columns[x]] in each channel; `fill` where either of them is -1.
class PixelCopy final : public Op {
 public:
  // Throws std::invalid_argument if an index is below -1.
  PixelCopy(std::vector<std::int64_t> rows, std::vector<std::int64_t> columns, float fill, Layout layout);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return layout_; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  // Adjacent pixels of a row that come from adjacent pixels; -1: that are filled.
  struct Run {
    std::int64_t to;
    std::int64_t from;
    std::int64_t count;
  };

  void copy_row(const float* __restrict from, float* __restrict to) const;

  std::vector<std::int64_t> rows_;
  std::int64_t columns_;
  std::vector<Run> runs_;
  bool doubles_ = false;      // whether each pixel of a row is repeated once
  std::int64_t end_row_ = 0;  // one more than the last row and column of the input
  std::int64_t end_column_ = 0;
  float fill_;
  Layout layout_;
};

}  // namespace sift::cpu
