// The gradient of a convolution's active weights: a sampled dense-dense product (SDDMM).
//
// A tile of output pixels of a few groups of 16 images is combined with a slice of input channels and a chunk of rows.
// The pixels of the slice are copied to a panel in the first-level cache, and the gradients of the rows to one in the
// second level. A task is a chunk of rows and some slices. It processes all tiles in order, and no other task adds to
// its sums, so the bits do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/conv_geometry.h"
#include "base/fork_safe_mutex.h"
#include "base/op.h"
#include "simd/kernel_table.h"
#include "train/weight_gradient/gradient_packing.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

// Tensors are in NCHWn16; a matrix product is the 1x1 convolution of h = w = 1.
class WeightGradient {
 public:
  // `indices` are those of the active weights, [rows][c / groups][kh][kw], as for `weights_of_places`. Throws
  // std::invalid_argument if the arguments do not fit.
  WeightGradient(std::int64_t rows, std::int64_t columns, std::span<const std::int64_t> indices,
                 std::span<const std::int64_t> places, const ConvGeometry& geometry, const KernelTable& kernels);
  // The values of `weights` are places of gradients; other objects may share them.
  WeightGradient(std::shared_ptr<const SparseWeights> weights, const ConvGeometry& geometry,
                 const KernelTable& kernels);
  ~WeightGradient();

  Shape output_shape(const Shape& in) const;

  // `shape` is that of x. Lanes beyond the last image hold finite values in x and zeros in dy. One gradient per index
  // is written to `dvalues`, or added to its content.
  void run(ThreadPool& pool, const Shape& shape, const float* x, const float* dy, float* dvalues,
           bool accumulate) const;

  std::int64_t nnz() const { return weights_->nnz(); }

 private:
  class Task;
  struct Packing;

  std::shared_ptr<const Packing> packing_of(const Shape& out, ThreadPool& pool) const;

  ConvGeometry geometry_;
  const KernelTable& kernels_;
  std::shared_ptr<const SparseWeights> weights_;  // whose values are places of gradients
  mutable ForkSafeMutex mutex_;
  mutable std::vector<std::shared_ptr<const Packing>> packings_;  // of the latest outputs
};

}  // namespace sift::cpu
