// Batch normalization in training and its gradient. Tensors are in NCHWn16; there is one statistic per channel.
//
// Each channel is a task. If a channel fits in the second-level cache, its second pass finds it there.
#pragma once

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// out = relu((x - mean) * inverse_std * weight + bias + residual)
struct BatchNorm {
  const float* x;
  const float* weight;    // null: 1
  const float* bias;      // null: 0
  const float* residual;  // null: none
  bool relu;
  float* out;
};

// Statistics of the values of a channel.
struct BatchStatistics {
  float* mean;
  float* inverse_std;  // 1 / sqrt(variance + epsilon)
  float* variance;     // the mean squared difference from the mean; null: not computed
};

// Computes the statistics of a channel of x, which must not be empty.
void compute_statistics(const Shape& shape, std::int64_t channel, const float* x, float epsilon,
                        const BatchStatistics& statistics, const KernelTable& kernels);

// Normalizes with the statistics of x, and writes them. Throws std::invalid_argument if x is empty.
void batch_norm_forward(ThreadPool& pool, const Shape& shape, const BatchNorm& args, float epsilon,
                        const BatchStatistics& statistics, const KernelTable& kernels);

// Normalizes with the given statistics.
void batch_norm_apply(ThreadPool& pool, const Shape& shape, const BatchNorm& args, const float* mean,
                      const float* inverse_std, const KernelTable& kernels);

struct BatchNormGradient {
  const float* dy;
  const float* x;
  const float* out;     // tells where `relu` passes the gradient; null: computed again from x, if no residual was added
  const float* weight;  // null: 1
  const float* bias;    // null: 0
  const float* mean;
  const float* inverse_std;
  bool relu;
  bool of_batch;  // the statistics are those of x, and depend on it
  float* dx;      // may be dy
  float* dweight;
  float* dbias;
  float* dresidual;  // null: not computed; may be dy
};

void batch_norm_backward(ThreadPool& pool, const Shape& shape, const BatchNormGradient& args,
                         const KernelTable& kernels);

}  // namespace sift::cpu
