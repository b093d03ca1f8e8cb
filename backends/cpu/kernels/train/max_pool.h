// Max pooling in training and its gradient. Tensors are in NCHWn16.
#pragma once

#include <cstdint>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

inline Shape pooled_shape(const ConvGeometry& geometry, const Shape& in) {
  return {in.n, in.c, geometry.output_h(in.h), geometry.output_w(in.w)};
}

// Throws std::invalid_argument for a kernel whose taps a byte does not count.
void check_taps(const ConvGeometry& geometry);

class TrainablePool {
 public:
  // Throws std::invalid_argument for a kernel whose taps a byte does not count.
  explicit TrainablePool(const ConvGeometry& geometry);

  Shape output_shape(const Shape& in) const;

  // taps: for each value of the output, the row-major number of the tap that it comes from.
  void forward(ThreadPool& pool, const Shape& shape, const float* x, float* out, std::uint8_t* taps,
               const KernelTable& kernels) const;

  // Gathers the gradient, so that each value of dx is written once. `shape` is that of the input.
  void backward(ThreadPool& pool, const Shape& shape, const float* dy, const std::uint8_t* taps, float* dx,
                const KernelTable& kernels) const;

 private:
  ConvGeometry geometry_;
};

}  // namespace sift::cpu
