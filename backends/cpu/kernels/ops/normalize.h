// Layer and RMS normalization over the channels of rows, or of each pixel of images; group normalization of images.
#pragma once

#include <vector>

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// (x - mean) / sqrt(max(variance, least) + epsilon) * scale[c] + shift[c], with the mean and variance over the channels
// of each row or pixel. In RMS normalization the mean is taken to be zero.
class LayerNormalization final : public Op {
 public:
  // Throws std::invalid_argument if there are no channels, or if the numbers of shifts and scales differ.
  LayerNormalization(std::vector<float> scale, std::vector<float> shift, float epsilon, bool is_centered, Layout layout,
                     const KernelTable& kernels, float least = 0);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return layout_; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  void run_pixels(ThreadPool& pool, const Shape& shape, const float* in, float* out) const;

  std::vector<float> scale_;
  std::vector<float> shift_;
  float epsilon_;
  bool is_centered_;  // not RMS normalization
  Layout layout_;
  const KernelTable& kernels_;
  float least_;
};

// The same for each of `groups` groups of channels of an image, over all their pixels. With as many groups as channels
// it is instance normalization.
class GroupNormalization final : public Op {
 public:
  // Throws std::invalid_argument if the numbers of shifts and scales differ, or are no multiple of the groups.
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
