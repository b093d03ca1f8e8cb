// The gradient of a convolution's weights, for the active ones alone: a sampled product (SDDMM).
//
// A tile of output pixels of a few groups of 16 images meets a slice of input channels, whose pixels are copied to a
// panel that the first-level cache holds, and a chunk of rows, whose gradients are copied to one for the second level.
// Rows of a slice are sorted by their number of weights in it, as in SELL-C-sigma, so that a block of rows with equally
// many keeps its sums in registers. A task is a chunk of rows and some slices: it goes over all tiles, in order, and no
// other task adds to its sums. So the bits written do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/conv_geometry.h"
#include "base/fork_safe_mutex.h"
#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// Tensors are in NCHWn16; a matrix product is the 1x1 convolution of h = w = 1.
class WeightGradient {
 public:
  // `indices`, strictly ascending, are those of the active weights, [rows][c / groups][kh][kw]. `places` says where in
  // the vector of gradients each index has its own, and is empty where they have one order. Throws
  // std::invalid_argument for what does not fit.
  WeightGradient(std::int64_t rows, std::int64_t columns, std::span<const std::int64_t> indices,
                 std::span<const std::int64_t> places, const ConvGeometry& geometry, const KernelTable& kernels);

  Shape output_shape(const Shape& in) const;

  // `shape` is that of x. Lanes of x beyond the last image hold anything finite, those of dy zeros. One gradient per
  // index is written to `dvalues`, or added to what it holds.
  void run(ThreadPool& pool, const Shape& shape, const float* x, const float* dy, float* dvalues,
           bool accumulate) const;

  std::int64_t nnz() const { return static_cast<std::int64_t>(columns_of_.size()); }

 private:
  struct Tile;
  struct Slice;
  struct Task;
  struct Packing;

  Tile tile_of(const Shape& out) const;
  std::shared_ptr<const Packing> packing_of(const Shape& out) const;
  void pack_slice(const Tile& tile, std::int64_t row_begin, std::span<std::uint32_t> cursors, std::int64_t column_end,
                  Slice& slice) const;
  void run_task(const Packing& packing, const Task& task, const Shape& in, const Shape& out, const float* x,
                const float* dy, float* dvalues, bool accumulate) const;

  std::int64_t rows_;
  std::int64_t columns_;
  ConvGeometry geometry_;
  const KernelTable& kernels_;
  std::vector<std::uint32_t> starts_;  // [rows + 1], of the rows' indices
  std::vector<std::uint32_t> columns_of_;
  std::vector<std::uint32_t> places_;  // [nnz]
  mutable ForkSafeMutex mutex_;
  mutable std::vector<std::shared_ptr<const Packing>> packings_;  // of the latest tiles
};

}  // namespace sift::cpu
