// A depthwise convolution in training, whose weights are dense, and its gradients. Tensors are in NCHWn16.
#pragma once

#include <cstdint>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// y = conv(x, weights) + bias with a group for each input channel, and so many outputs of each. All results have the
// same bits for any number of threads.
class DepthwiseConv {
 public:
  // Throws std::invalid_argument for rows that are no multiple of the groups.
  DepthwiseConv(std::int64_t rows, const ConvGeometry& geometry);

  // Throws std::invalid_argument where channels are not the groups.
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
