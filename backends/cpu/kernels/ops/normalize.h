// Layer and RMS normalization of rows: h = w = 1, over the channels.
#pragma once

#include <vector>

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// (x - mean) / sqrt(variance + epsilon) * scale[c] + shift[c], mean and variance of each row by itself; RMS
// normalization takes the mean to be zero.
class LayerNormalization final : public Op {
 public:
  // Throws std::invalid_argument if there are no channels, or not as many shifts as scales.
  LayerNormalization(std::vector<float> scale, std::vector<float> shift, float epsilon, bool is_centered, Layout layout,
                     const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return layout_; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  std::vector<float> scale_;
  std::vector<float> shift_;
  float epsilon_;
  bool is_centered_;  // not RMS normalization
  Layout layout_;
  const KernelTable& kernels_;
};

}  // namespace sift::cpu
