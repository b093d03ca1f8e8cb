// activation(x weights^T + bias + second) with dense weights, rows (tokens) in lanes: x [m][columns] in NCHWn16.
//
// Tiles of as many rows of weights as registers hold, by one block of 16 tokens. Large products are made by one level
// of Strassen's algorithm, with seven eighths of the multiply-adds: sums of quarters of the input are made once, those
// of the weights beside the tile that reads them, and a tile is added to its quarters of the result while these are in
// the first-level cache (Huang, Smith, Henry, van de Geijn, "Strassen's Algorithm Reloaded", SC 2016).
//
// That adds up tokens, and rows of weights, which have nothing to do with each other. Each is first scaled by the power
// of two that brings its largest value to [1/2, 1): so what an output loses to rounding is a few units of its own
// token's and its own row's magnitudes, not of others'. Where a token or a weight is not finite, the product is made
// without, since it would be in others' sums.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/activation.h"
#include "base/aligned_buffer.h"
#include "base/op.h"
#include "simd/kernel_table.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

class DenseProduct final : public Op {
 public:
  // Whether weights of this size are multiplied faster so than by a Conv.
  static bool suits(std::int64_t rows, std::int64_t columns) { return rows >= kLeastRows && columns >= kLeastColumns; }

  // `bias` is empty or has one value per row. Throws std::invalid_argument for another bias, and for weights that are
  // empty or not dense.
  DenseProduct(const SparseWeights& weights, std::vector<float> bias, Activation activation,
               const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return Layout::nchw_n16; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;
  std::int64_t weight_bytes() const override;

  // Whether finite inputs of this shape are multiplied by Strassen's algorithm.
  bool halves(const Shape& shape) const;
  std::int64_t tile_rows() const { return kernels_.dense_rows; }

  // The weights, out of what was packed of them.
  std::shared_ptr<const SparseWeights> source() const;

 private:
  // With fewer, tiles that are not full, and sums that begin and end, weigh more than what is gained.
  static constexpr std::int64_t kLeastRows = 2048;
  static constexpr std::int64_t kLeastColumns = 512;

  struct Job;
  struct Task;
  class WeightsAhead;

  std::int64_t weight_count() const { return tiles_ * kernels_.dense_rows * slices_ * slice_columns_; }
  const float* weights_of(std::int64_t tile, std::int64_t slice) const {
    return weights_ + (slice * tiles_ + tile) * slice_columns_ * kernels_.dense_rows;
  }
  std::int64_t place_of(std::int64_t row, std::int64_t column) const;
  std::int64_t columns_of(std::int64_t slice) const;
  std::int64_t token_floats(const Job& job) const;
  bool find_scales(ThreadPool& pool, const Shape& shape, const float* in, float* scales, float* unscales) const;
  void combine_tokens(const Job& job, std::int64_t pair) const;
  const float* factor(const Job& job, const Task& task, std::size_t product, std::int64_t tile) const;
  const float* quarter(const Job& job, const Task& task, std::int64_t tile, int number) const;
  void combine_weights(const Job& job, const Task& task) const;
  void multiply(const Job& job, const Task& task, std::int64_t pair, float* sums, WeightsAhead& ahead) const;
  void finish(const Job& job, const Task& task, std::int64_t pair, const float* sums) const;
  void run_task(const Job& job, std::int64_t first_tile, std::int64_t first_pair) const;

  std::int64_t rows_;
  std::int64_t columns_;
  std::int64_t slices_;         // of the columns, one after the other
  std::int64_t slice_columns_;  // a multiple of 32; beyond the last column are weights of zero
  std::int64_t tiles_;          // an even number; beyond the last row are weights of zero
  bool finite_ = true;
  Activation activation_;
  const KernelTable& kernels_;
  std::vector<float> bias_;        // [tiles][tile_rows]
  std::vector<float> row_scales_;  // [tiles][tile_rows], what the weights were divided by
  AlignedBuffer memory_;
  float* weights_;  // [slices][tiles][slice_columns][tile_rows]
};

}  // namespace sift::cpu
