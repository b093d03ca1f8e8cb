// y = x weights^T + bias of sparse weights that stay in a cache, and of one or few rows of x.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/op.h"
#include "simd/recurrent/kernel_table.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

// Sixteen rows of the weights lie in the lanes. Their active weights in 31 columns are a group, or several: in each, a
// lane has four, and looks up what they are multiplied with in two registers that hold the columns of x. Where a row
// has fewer than others, its lane looks up a zero. That takes about twice the bytes of bits and values, and a fraction
// of the time where they do not come from memory.
class LookupProduct final : public Op {
 public:
  static constexpr std::int64_t kUnsuited = -1;
  // Bytes that they would take; kUnsuited where there is no kernel, or weights are too dense or of too few columns.
  static std::int64_t packed_bytes(const SparseWeights& weights, const KernelTable& kernels);

  // `bias` is empty or has one value per row. Throws std::invalid_argument for unsuited weights.
  LookupProduct(const SparseWeights& weights, const std::vector<float>& bias, const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return Layout::nchw; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;
  std::int64_t weight_bytes() const override;

 private:
  void pack_block(const SparseWeights& weights, std::int64_t first_row);

  std::int64_t rows_;
  std::int64_t columns_;
  std::int64_t nnz_;
  LookupFunction lookup_;
  std::vector<float> bias_;                 // padded to whole blocks
  std::vector<std::int64_t> block_groups_;  // [blocks + 1]: where the groups of a block begin
  std::vector<std::uint16_t> first_columns_;
  AlignedBuffer memory_;
  // Both in `memory_`, as LookupArgs has them.
  float* values_ = nullptr;
  std::uint32_t* places_ = nullptr;
};

}  // namespace sift::cpu
