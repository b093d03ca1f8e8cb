// Weights row by row, wherever they are held.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weights/sparse_weights.h"

namespace sift::cpu {

// What is left of a row of the weights.
struct WeightRow {
  std::span<const std::uint32_t> columns;
  std::span<const float> values;

  // Splits off what lies before `column`.
  WeightRow take_until(std::uint32_t column) {
    const auto count =
        static_cast<std::size_t>(std::lower_bound(columns.begin(), columns.end(), column) - columns.begin());
    const WeightRow taken{columns.first(count), values.first(count)};
    columns = columns.subspan(count);
    values = values.subspan(count);
    return taken;
  }
};

class RowSource {
 public:
  virtual ~RowSource() = default;

  virtual std::int64_t columns() const = 0;
  // Expected number of weights per row.
  virtual double row_nnz() = 0;
  // Rows [first, first + count), until the next call.
  virtual std::span<const WeightRow> read(std::int64_t first, std::int64_t count) = 0;

 protected:
  RowSource() = default;
  RowSource(const RowSource&) = default;
  RowSource& operator=(const RowSource&) = default;
};

class StoredRows final : public RowSource {
 public:
  explicit StoredRows(const SparseWeights& weights) : weights_(weights) {}

  std::int64_t columns() const override { return weights_.columns(); }
  double row_nnz() override { return static_cast<double>(weights_.nnz()) / static_cast<double>(weights_.rows()); }
  std::span<const WeightRow> read(std::int64_t first, std::int64_t count) override {
    rows_.clear();
    for (std::int64_t row = first; row < first + count; ++row) {
      rows_.push_back({weights_.row_columns(row), weights_.row_values(row)});
    }
    return rows_;
  }

 private:
  const SparseWeights& weights_;
  std::vector<WeightRow> rows_;
};

}  // namespace sift::cpu
