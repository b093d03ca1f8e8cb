// A depthwise convolution with dense weights in training, and its gradients. Tensors are in NCHWn16.
#pragma once

#include <cstdint>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// y = conv(x, weights) + bias with one group per input channel, and one or more outputs per group. All results have the
// same bits for any number of threads.
class DepthwiseConv {
 public:
  // Throws std::invalid_argument if the number of rows is not a multiple of the groups.
  DepthwiseConv(std::int64_t rows, const ConvGeometry& geometry);

  // Throws std::invalid_argument if the numbers of channels and groups differ.
  Shape output_shape(const Shape& in) const;
  std::int64_t rows() const { return rows_; }
  std::int64_t weights() const { return rows_ * taps(); }

  // `shape` is that of x and dx; weights are [rows][kernel_h][kernel_w], and so is their gradient. `bias` has a value
  // per row, or is null.
  void forward(ThreadPool& pool, const Shape& shape, const float* x, const float* weight, const float* bias, float* out,
               const KernelTable& kernels) const;
  void input_gradient(ThreadPool& pool, const Shape& shape, const float* dy, const float* weight, float* dx,
                      const KernelTable& kernels) const;
  // Lanes beyond the last image are zero in dy.
  void weight_gradient(ThreadPool& pool, const Shape& shape, const float* x, const float* dy, float* dweight,
                       const KernelTable& kernels) const;

 private:
  std::int64_t taps() const { return geometry_.kernel_h * geometry_.kernel_w; }
  std::int64_t outputs() const { return rows_ / geometry_.groups; }  // of an input channel

  std::int64_t rows_;
  ConvGeometry geometry_;
};

}  // namespace sift::cpu
