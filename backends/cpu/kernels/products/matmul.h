// activation(x weights^T + bias + second) of row-major matrices: x [m][columns], y [m][rows].
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/activation.h"
#include "base/fork_safe_mutex.h"
#include "base/op.h"
#include "conv/conv.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

// For up to 16 rows the weights stream past once, 6 bytes per non-zero, and the rows lie interleaved in the cache. For
// more, rows become lanes, and the product is a 1x1 convolution in NCHWn16; a chain of products is better built of
// such convolutions, which need no reordering in between.
class Matmul final : public Op {
 public:
  Matmul(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias, Activation activation,
         const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return Layout::nchw; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;
  std::int64_t weight_bytes() const override;

  // As Conv's: both forms of the weights, that for few rows and that for many, can be made from each other.
  bool release_source() const;
  std::shared_ptr<const SparseWeights> source() const;

 private:
  // Columns [first, first + 65536), so that a column's index takes 16 bits.
  struct Slice {
    std::int64_t first = 0;
    std::vector<std::uint32_t> starts;
    std::vector<std::uint16_t> columns;
    std::vector<float> values;
  };
  // The weights as they stream past few rows.
  struct Few {
    std::vector<Slice> slices;
    std::vector<std::int64_t> chunks;  // bounds of rows with about equal numbers of non-zeros
  };

  // Made when first needed.
  std::shared_ptr<const Few> few() const;
  std::shared_ptr<const Conv> many() const;
  std::shared_ptr<const SparseWeights> locked_source() const;
  std::shared_ptr<const Few> make_few(const SparseWeights& weights) const;
  SparseWeights unpack(const Few& few) const;

  void run_few(ThreadPool& pool, std::int64_t m, const float* in, const float* second, float* out) const;

  std::int64_t rows_;
  std::int64_t columns_;
  std::int64_t nnz_;
  std::vector<float> bias_;
  Activation activation_;
  const KernelTable& kernels_;

  mutable ForkSafeMutex mutex_;
  mutable std::shared_ptr<const SparseWeights> weights_;  // null once released; then one of the others is not
  mutable std::shared_ptr<const Few> few_;
  mutable std::shared_ptr<const Conv> many_;
};

}  // namespace sift::cpu
