// Addition, subtraction, multiplication, scaling per channel, and activations on their own.
#pragma once

#include <vector>

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// activation(a op b) of two tensors of one shape; the kind `first` is activation(a).
class Elementwise final : public Op {
 public:
  Elementwise(BinaryKind kind, Activation activation, Layout layout, const KernelTable& kernels)
      : kind_(kind), activation_(activation), layout_(layout), kernels_(kernels) {}

  Shape output_shape(const Shape& in) const override { return in; }
  Layout input_layout() const override { return layout_; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  BinaryKind kind_;
  Activation activation_;
  Layout layout_;
  const KernelTable& kernels_;
};

// activation(a op b[n][c]) with a value of b for each channel of each image: the gate of squeeze-and-excite.
class ChannelCombine final : public Op {
 public:
  // Throws std::invalid_argument for the kind `first`.
  ChannelCombine(BinaryKind kind, Activation activation, Layout layout, const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override { return in; }
  Layout input_layout() const override { return layout_; }
  OtherSizes other_sizes(const Shape& in) const override;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  BinaryKind kind_;
  Activation activation_;
  Layout layout_;
  const KernelTable& kernels_;
};

// activation(x * scale[c] + shift[c]): a normalization that is not folded into a convolution. Slopes, if there are any,
// are those of `leaky` for each channel.
class ChannelScale final : public Op {
 public:
  // Throws std::invalid_argument if the numbers of scales, shifts and slopes differ, or if there are slopes with
  // another activation.
  ChannelScale(std::vector<float> scale, std::vector<float> shift, std::vector<float> slopes, Activation activation,
               Layout layout, const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return layout_; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  std::vector<float> scale_;
  std::vector<float> shift_;
  std::vector<float> slopes_;
  Activation activation_;
  Layout layout_;
  const KernelTable& kernels_;
};

}  // namespace sift::cpu
