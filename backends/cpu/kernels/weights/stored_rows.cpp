// Weights as they are stored: counts of the rows, columns in as few bytes as they need, values.
#include <cstddef>
#include <stdexcept>
#include <string>

#include "weights/sparse_weights.h"

namespace sift::cpu {

std::vector<std::uint32_t> SparseWeights::row_counts() const {
  std::vector<std::uint32_t> counts(static_cast<std::size_t>(rows_));
  for (std::size_t row = 0; row < counts.size(); ++row) {
    counts[row] = static_cast<std::uint32_t>(starts_[row + 1] - starts_[row]);
  }
  return counts;
}

std::span<const std::uint32_t> SparseWeights::entry_columns() const {
  if (lists_all_) return {};
  return column_of_;
}

template <typename Column>
SparseWeights SparseWeights::from_rows(std::int64_t rows, std::int64_t columns,
                                       std::span<const std::uint32_t> row_counts, std::span<const Column> entry_columns,
                                       std::span<const float> entry_values) {
  if (entry_columns.empty() && !entry_values.empty()) return from_all(rows, columns, entry_values);
  SparseWeights weights(rows, columns);
  if (row_counts.size() != static_cast<std::size_t>(rows) || entry_columns.size() != entry_values.size()) {
    throw std::invalid_argument("weights: there is a count for each row, and a column for each value");
  }
  for (const std::uint32_t count : row_counts) weights.starts_.push_back(weights.starts_.back() + count);
  if (weights.starts_.back() != entry_values.size()) {
    throw std::invalid_argument("weights: the rows have " + std::to_string(weights.starts_.back()) +
                                " entries together, and not " + std::to_string(entry_values.size()));
  }
  bool ascends = true;
  for (std::size_t row = 0; row < row_counts.size(); ++row) {
    const auto own = entry_columns.subspan(weights.starts_[row], row_counts[row]);
    for (std::size_t i = 1; i < own.size(); ++i) ascends &= own[i - 1] < own[i];
    ascends &= own.empty() || static_cast<std::int64_t>(own.back()) < columns;
  }
  if (!ascends) throw std::invalid_argument("weights: columns must ascend within a row and lie within the matrix");
  weights.column_of_.assign(entry_columns.begin(), entry_columns.end());
  weights.values_.assign(entry_values.begin(), entry_values.end());
  return weights;
}

template SparseWeights SparseWeights::from_rows(std::int64_t, std::int64_t, std::span<const std::uint32_t>,
                                                std::span<const std::uint16_t>, std::span<const float>);
template SparseWeights SparseWeights::from_rows(std::int64_t, std::int64_t, std::span<const std::uint32_t>,
                                                std::span<const std::uint32_t>, std::span<const float>);

}  // namespace sift::cpu
