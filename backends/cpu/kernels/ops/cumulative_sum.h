// Sums of all channels up to each.
#pragma once

#include "base/op.h"

namespace sift::cpu {

// out[c] = x[0] + ... + x[c] of each row, or pixel of an image; each sum is the last one and one value more.
class CumulativeSum final : public Op {
 public:
  // If exclusive, x[c] is no part of out[c]; if reversed, sums begin at the last channel. The layout holds floats.
  CumulativeSum(bool is_exclusive, bool is_reversed, Layout layout)
      : is_exclusive_(is_exclusive), is_reversed_(is_reversed), layout_(layout) {}

  Shape output_shape(const Shape& in) const override { return in; }
  Layout input_layout() const override { return layout_; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  bool is_exclusive_;
  bool is_reversed_;
  Layout layout_;
};

}  // namespace sift::cpu
