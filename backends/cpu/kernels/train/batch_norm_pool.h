// Fused batch normalization, ReLU and max pooling in training, and their gradient: the normalized values are not
// stored. Tensors are in NCHWn16; there is one statistic per channel. Each channel is a task, as in batch_norm.h.
#pragma once

#include <cstdint>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "simd/kernel_table.h"
#include "train/batch_norm.h"

namespace sift::cpu {

struct BatchNormPool {
  const float* x;
  const float* weight;  // null: 1
  const float* bias;    // null: 0
  bool relu;
  float* out;          // the maxima of windows of relu((x - mean) * inverse_std * weight + bias)
  float* chosen;       // the value of x at each maximum
  std::uint8_t* taps;  // the tap of each maximum in its window; kNoTap if no gradient passes
};

// `shape` is that of x. With an epsilon, the statistics are computed; otherwise they are given. Throws
// std::invalid_argument if x is empty, and for windows that contain only padding.
void batch_norm_pool_forward(ThreadPool& pool, const ConvGeometry& geometry, const Shape& shape,
                             const BatchNormPool& args, const float* epsilon, const BatchStatistics& statistics,
                             const KernelTable& kernels);

struct BatchNormPoolGradient {
  const float* dy;
  const float* x;
  const float* chosen;
  const std::uint8_t* taps;
  const float* weight;  // null: 1
  const float* bias;    // null: 0
  const float* mean;
  const float* inverse_std;
  bool relu;
  bool of_batch;  // the statistics are those of x, and depend on it
  float* dx;
  float* dweight;
  float* dbias;
};

void batch_norm_pool_backward(ThreadPool& pool, const ConvGeometry& geometry, const Shape& shape,
                              const BatchNormPoolGradient& args, const KernelTable& kernels);

}  // namespace sift::cpu
