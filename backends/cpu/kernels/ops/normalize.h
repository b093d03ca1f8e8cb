// Layer and RMS normalization of rows: h = w = 1, over the channels; group normalization of images.
#pragma once

#include <vector>

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// (x - mean) / sqrt(max(variance, least) + epsilon) * scale[c] + shift[c], mean and variance of each row by itself; RMS
// normalization takes the mean to be zero.
class LayerNormalization final : public Op {
 public:
  // Throws std::invalid_argument if there are no channels, or not as many shifts as scales.
  LayerNormalization(std::vector<float> scale, std::vector<float> shift, float epsilon, bool is_centered, Layout layout,
                     const KernelTable& kernels, float least = 0);

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
  float least_;
};

// The same of each of `groups` groups of channels of an image by itself, over their pixels; of as many groups as
// channels it is instance normalization.
class GroupNormalization final : public Op {
 public:
  // Throws std::invalid_argument if there are not as many shifts as scales, or they do not fill the groups.
  GroupNormalization(std::vector<float> scale, std::vector<float> shift, std::int64_t groups, float epsilon,
                     Layout layout, const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return layout_; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  std::vector<float> scale_;
  std::vector<float> shift_;
  std::int64_t groups_;
  float epsilon_;
  Layout layout_;
  const KernelTable& kernels_;
};

}  // namespace sift::cpu
