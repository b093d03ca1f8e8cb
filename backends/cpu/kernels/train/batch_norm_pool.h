// Batch normalization, ReLU and maximum pooling in training, and their gradient: what is normalized is not stored.
// Tensors are in NCHWn16, statistics one per channel. Each channel is a task, as in batch_norm.h.
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
  float* chosen;       // x where they are
  std::uint8_t* taps;  // where that is in the window; kNoTap where no gradient passes
};

// `shape` is that of x. Computes the statistics if there is an epsilon, or takes them as they are. Throws
// std::invalid_argument for windows of padding alone, and if there are no values.
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
