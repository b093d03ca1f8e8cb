// Weights as they come from a model: the active ones of a [rows][columns] matrix, row after row. Those are what a mask
// says, whatever their values; without a mask, the non-zeros. Of a matrix with few others all values are kept, 4 bytes
// each, and listed alike.
//
// For a convolution a row is an output channel and a column an input channel of its group and a tap: [c][kh][kw].
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/page_allocator.h"
#include "weights/mask_bits.h"

namespace sift::cpu {

// Shared by itself, so that Python's share and those of operators are alike: an operator that gives up the last one
// does not need the interpreter's lock for it.
class SparseWeights : public std::enable_shared_from_this<SparseWeights> {
 public:
  // Takes those of `dense`, [rows][columns], that are active: in `mask`, which has a bit for each in the order of
  // `dense` (see MaskBits), or, if that is empty, by not being zero. If `dense` is transposed, it is [columns][rows].
  // Throws std::invalid_argument if a size does not fit.
  static SparseWeights from_dense(std::int64_t rows, std::int64_t columns, std::span<const float> dense,
                                  bool transposed = false, std::span<const std::uint8_t> mask = {});

  // Lists all of `dense`, [rows][columns].
  static SparseWeights from_all(std::int64_t rows, std::int64_t columns, std::span<const float> dense);

  // `indices` are flat and strictly ascending: row * columns + column. Throws std::invalid_argument if they are not, or
  // lie outside, or if there are not as many values.
  static SparseWeights from_indices(std::int64_t rows, std::int64_t columns, std::span<const std::int64_t> indices,
                                    std::span<const float> values);

  // Appends the weights of one row after the other, to make weights from another form of them.
  class Builder;

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  // As many values as are listed.
  std::int64_t nnz() const { return static_cast<std::int64_t>(values_.size()); }
  double density() const;
  std::int64_t bytes() const;

  // With row r multiplied by factors[r]; throws std::invalid_argument if there is not one factor per row.
  SparseWeights scaled(std::span<const float> factors) const;

  std::span<const std::uint32_t> row_columns(std::int64_t row) const;
  std::span<const float> row_values(std::int64_t row) const;

 private:
  SparseWeights(std::int64_t rows, std::int64_t columns);

  // What from_dense does, which has found out where rows start.
  void list_active(std::span<const float> dense, bool transposed, MaskBits mask);
  void list_non_zeros(std::span<const float> dense, bool transposed);
  void list_all(std::span<const float> dense, bool transposed);

  std::int64_t rows_;
  std::int64_t columns_;
  std::vector<std::size_t> starts_;  // [rows + 1]
  // [nnz], or [columns] if every row lists all of them.
  std::vector<std::uint32_t, PageAllocator<std::uint32_t>> column_of_;
  bool lists_all_ = false;
  std::vector<float, PageAllocator<float>> values_;
};

// What decides whether weights are worth a SparseWeights, in one pass over them: as many as from_dense takes.
struct WeightCount {
  std::int64_t nnz = 0;
  bool finite = true;
};
WeightCount count_weights(std::span<const float> dense, std::span<const std::uint8_t> mask = {});

class SparseWeights::Builder {
 public:
  Builder(std::int64_t rows, std::int64_t columns, std::int64_t nnz);

  void add(std::uint32_t column, float value) {
    weights_.column_of_.push_back(column);
    weights_.values_.push_back(value);
  }
  void end_row() { weights_.starts_.push_back(weights_.values_.size()); }
  SparseWeights take() { return std::move(weights_); }

 private:
  SparseWeights weights_;
};

}  // namespace sift::cpu
