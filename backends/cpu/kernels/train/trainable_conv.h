// A convolution in training: the values of its sparse weights change from step to step, their positions do not.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/conv_geometry.h"
#include "base/fork_safe_mutex.h"
#include "base/op.h"
#include "conv/conv.h"
#include "simd/kernel_table.h"
#include "train/weight_gradient/weight_gradient.h"
#include "weights/changing_values.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

// y = conv(x, weights) + bias, and the gradient of x from that of y. Tensors are in NCHWn16; a matrix product is the
// 1x1 convolution of h = w = 1. Both directions write the same bits for any number of threads.
//
// Weights are packed when a shape first arrives, and for the gradient of the input when it is first needed. A packing
// fetches new values in its next run.
class TrainableConv {
 public:
  // `indices` as for SparseWeights::from_indices. `places` has the position of each index's value in the vector of
  // values; it is empty if both have the same order. Throws std::invalid_argument if these do not fit, or are empty.
  TrainableConv(std::int64_t rows, std::int64_t columns, std::span<const std::int64_t> indices,
                std::span<const std::int64_t> places, const ConvGeometry& geometry, const KernelTable& kernels);

  // Copies one value per index. Must be called before the first run, and not during a run. Throws
  // std::invalid_argument.
  void update(std::span<const float> values) { values_->set(values); }

  Shape output_shape(const Shape& in) const { return forward_.output_shape(in); }

  // `shape` is that of x and of dx. `bias` has a value per row, or is null.
  void forward(ThreadPool& pool, const Shape& shape, const float* x, const float* bias, float* out) const;
  void input_gradient(ThreadPool& pool, const Shape& shape, const float* dy, float* dx) const;

  // The gradient of the weights, which shares their positions with this object.
  std::unique_ptr<WeightGradient> weight_gradient() const {
    return std::make_unique<WeightGradient>(weights_, geometry_, kernels_);
  }

  std::int64_t rows() const { return weights_->rows(); }
  std::int64_t nnz() const { return weights_->nnz(); }
  std::int64_t bytes() const;

  // How this many threads run inputs of this shape; for the gradient of the input, one description per phase.
  Conv::Description describe(const Shape& shape, int threads) const { return forward_.describe(shape, threads); }
  std::vector<Conv::Description> describe_input_gradient(const Shape& shape, int threads) const;

 private:
  struct Phase {
    OutputGrid grid;
    std::unique_ptr<const Conv> conv;
  };
  void require_values() const;
  const std::vector<Phase>& phases() const;
  bool is_strided() const { return geometry_.stride_h > 1 || geometry_.stride_w > 1; }

  ConvGeometry geometry_;
  const KernelTable& kernels_;
  std::shared_ptr<ChangingValues> values_;
  std::shared_ptr<const SparseWeights> weights_;
  Conv forward_;
  mutable ForkSafeMutex mutex_;
  mutable std::vector<Phase> phases_;  // empty until they are needed
};

}  // namespace sift::cpu
