// Batch normalization in training, and its gradient. Tensors are in NCHWn16, statistics one per channel.
//
// Each channel is a task: what its second pass reads is still in the second-level cache if the channel fits there.
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

// Of the values of a channel.
struct BatchStatistics {
  float* mean;
  float* inverse_std;  // 1 / sqrt(variance + epsilon)
  float* variance;     // the mean squared difference from the mean; null: not wanted
};

// Computes those of a channel of x, which has values.
void compute_statistics(const Shape& shape, std::int64_t channel, const float* x, float epsilon,
                        const BatchStatistics& statistics, const KernelTable& kernels);

// With the statistics of x, which it writes. Throws std::invalid_argument if there is no value to compute them from.
void batch_norm_forward(ThreadPool& pool, const Shape& shape, const BatchNorm& args, float epsilon,
                        const BatchStatistics& statistics, const KernelTable& kernels);

// With statistics that are given.
void batch_norm_apply(ThreadPool& pool, const Shape& shape, const BatchNorm& args, const float* mean,
                      const float* inverse_std, const KernelTable& kernels);

struct BatchNormGradient {
  const float* dy;
  const float* x;
  const float* out;     // where `relu` lets the gradient pass; null: computed again from x, where no residual was added
  const float* weight;  // null: 1
  const float* bias;    // null: 0
  const float* mean;
  const float* inverse_std;
  bool relu;
  bool of_batch;  // the statistics are those of x, and depend on it
  float* dx;      // may be dy
  float* dweight;
  float* dbias;
  float* dresidual;  // null: not wanted; may be dy
};

void batch_norm_backward(ThreadPool& pool, const Shape& shape, const BatchNormGradient& args,
                         const KernelTable& kernels);

}  // namespace sift::cpu
