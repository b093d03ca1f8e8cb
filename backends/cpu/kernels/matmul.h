// activation(x weights^T + bias + second) of row-major matrices: x [m][columns], y [m][rows].
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "conv.h"
#include "epilogue.h"
#include "op.h"
#include "sparse_weights.h"

namespace sift::cpu {

// For up to 16 rows the weights stream past once, 6 bytes per non-zero, and the rows lie interleaved in the cache. For
// more, rows become lanes, and the product is a 1x1 convolution in images16; a chain of products is better built of
// such convolutions, which need no reordering in between.
class Matmul final : public Op {
 public:
  Matmul(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias, Activation activation,
         const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return Layout::planes; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const float* second, float* out) const override;

 private:
  // Columns [first, first + 65536), so that a column's index takes 16 bits.
  struct Slice {
    std::int64_t first = 0;
    std::vector<std::uint32_t> starts;
    std::vector<std::uint16_t> columns;
    std::vector<float> values;
  };

  void run_few(ThreadPool& pool, std::int64_t m, const float* in, const float* second, float* out) const;

  std::int64_t rows_;
  std::int64_t columns_;
  std::int64_t nnz_;
  std::vector<float> bias_;
  Activation activation_;
  const KernelTable& kernels_;
  std::vector<Slice> slices_;
  std::vector<std::int64_t> chunks_;  // bounds of rows with about equal numbers of non-zeros
  Conv many_;
};

}  // namespace sift::cpu
