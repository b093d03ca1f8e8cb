// The weights of a model, a [rows][columns] matrix in compressed sparse rows (CSR). Its entries are the active weights:
// those that a mask keeps, whatever their values, or the non-zeros if there is no mask.
//
//   starts     [rows + 1]  row r has the entries from starts[r] to before starts[r + 1]
//   column_of  [nnz]       the column of each entry, ascending within a row
//   values     [nnz]       the value of each entry
//
// If nearly all weights are active, every weight is an entry. All rows then share one list of columns, column_of
// [columns], so that a weight takes 4 bytes and not 8.
//
// For a convolution a row is an output channel and a column an input channel of its group and a tap: [c][kh][kw].
// packed_weights.h has the order in which kernels read them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/page_allocator.h"
#include "weights/mask_bits.h"

namespace sift::cpu {

// Density from which every weight is an entry, and kernels multiply by zeros too. Above a half, 4 bytes for every
// weight are less than 8 for each that is active.
inline constexpr double kDenseAbove = 0.85;

// Immutable once made, and read by several threads. Python and operators share ownership: an operator that gives up the
// last share does not need the interpreter's lock.
class SparseWeights : public std::enable_shared_from_this<SparseWeights> {
 public:
  // The active weights of `dense`, [rows][columns], or [columns][rows] if `transposed`. `mask` has one bit per value in
  // the order of `dense` (see MaskBits); if it is empty, the non-zeros are active. Throws std::invalid_argument if a
  // size does not fit.
  static SparseWeights from_dense(std::int64_t rows, std::int64_t columns, std::span<const float> dense,
                                  bool transposed = false, std::span<const std::uint8_t> mask = {});

  // Every value of `dense`, [rows][columns], is an entry. Throws std::invalid_argument if the size does not fit.
  static SparseWeights from_all(std::int64_t rows, std::int64_t columns, std::span<const float> dense);

  // `indices` are flat, row * columns + column, and strictly ascending. Throws std::invalid_argument if they are not,
  // if one lies outside of the matrix, or if there are not as many values.
  static SparseWeights from_indices(std::int64_t rows, std::int64_t columns, std::span<const std::int64_t> indices,
                                    std::span<const float> values);

  // From what `row_counts`, `entry_columns` and `entry_values` tell: entries of each row, their columns, ascending
  // within a row, and their values. Without columns every value is an entry. Throws std::invalid_argument if they do
  // not fit each other or the size. `Column` is std::uint16_t or std::uint32_t.
  template <typename Column>
  static SparseWeights from_rows(std::int64_t rows, std::int64_t columns, std::span<const std::uint32_t> row_counts,
                                 std::span<const Column> entry_columns, std::span<const float> entry_values);
  std::vector<std::uint32_t> row_counts() const;
  // Empty where every weight is an entry.
  std::span<const std::uint32_t> entry_columns() const;
  std::span<const float> entry_values() const { return values_; }

  // Appends entries row by row, to make CSR of another form.
  class Builder;

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  // Number of entries.
  std::int64_t nnz() const { return static_cast<std::int64_t>(values_.size()); }
  double density() const;
  std::int64_t bytes() const;

  // With row r multiplied by factors[r]; throws std::invalid_argument if there is not one factor per row.
  SparseWeights scaled(std::span<const float> factors) const;

  std::span<const std::uint32_t> row_columns(std::int64_t row) const;
  std::span<const float> row_values(std::int64_t row) const;

 private:
  SparseWeights(std::int64_t rows, std::int64_t columns);

  // Parts of from_dense; the first two need starts_.
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

// In one pass and without memory: the nnz that from_dense would find, and whether no value is NaN or infinite.
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
  void add(std::span<const std::uint32_t> columns, std::span<const float> values) {
    weights_.column_of_.insert(weights_.column_of_.end(), columns.begin(), columns.end());
    weights_.values_.insert(weights_.values_.end(), values.begin(), values.end());
  }
  void end_row() { weights_.starts_.push_back(weights_.values_.size()); }
  SparseWeights take() { return std::move(weights_); }

 private:
  SparseWeights weights_;
};

}  // namespace sift::cpu
