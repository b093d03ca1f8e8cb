// Layer or RMS normalization in training, and its gradient. Tensors are matrices of tokens in NCHWn16, with one
// statistic per lane.
#pragma once

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// out = (x - mean) * inverse_std * weight + bias
struct LayerNorm {
  const float* x;
  const float* weight;  // null: 1
  const float* bias;    // null: 0
  float epsilon;
  float* out;          // may be x
  float* mean;         // over the channels of each token; null: RMS normalization, which subtracts no mean
  float* inverse_std;  // 1 / sqrt(variance + epsilon)
};

// Throws std::invalid_argument if the shape is not that of a matrix with channels.
void layer_norm_forward(ThreadPool& pool, const Shape& shape, const LayerNorm& args, const KernelTable& kernels);

struct LayerNormGradient {
  const float* dy;
  const float* x;
  const float* weight;  // null: 1
  const float* mean;    // null: RMS normalization
  const float* inverse_std;
  float* dx;       // may be dy or x
  float* dweight;  // null: not wanted
  float* dbias;    // null: not wanted
};

// Throws std::invalid_argument if the shape is not that of a matrix with channels.
void layer_norm_backward(ThreadPool& pool, const Shape& shape, const LayerNormGradient& args,
                         const KernelTable& kernels);

}  // namespace sift::cpu
