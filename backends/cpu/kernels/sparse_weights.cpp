#include "sparse_weights.h"

#include <limits>
#include <stdexcept>

namespace sift::cpu {

SparseWeights::SparseWeights(std::int64_t rows, std::int64_t columns) : rows_(rows), columns_(columns) {
  if (rows < 0 || columns < 0 || columns > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("weights: rows and columns must not be negative, and columns fit 32 bits");
  }
  starts_.reserve(static_cast<std::size_t>(rows) + 1);
  starts_.push_back(0);
}

SparseWeights SparseWeights::from_dense(std::int64_t rows, std::int64_t columns, std::span<const float> dense) {
  SparseWeights weights(rows, columns);
  if (static_cast<std::int64_t>(dense.size()) != rows * columns) {
    throw std::invalid_argument("weights: the dense array does not have rows x columns values");
  }
  const float* value = dense.data();
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column, ++value) {
      if (*value == 0.0F) continue;
      weights.column_of_.push_back(static_cast<std::uint32_t>(column));
      weights.values_.push_back(*value);
    }
    weights.starts_.push_back(weights.values_.size());
  }
  weights.column_of_.shrink_to_fit();
  weights.values_.shrink_to_fit();
  return weights;
}

SparseWeights SparseWeights::from_indices(std::int64_t rows, std::int64_t columns,
                                          std::span<const std::int64_t> indices, std::span<const float> values) {
  SparseWeights weights(rows, columns);
  if (indices.size() != values.size()) throw std::invalid_argument("weights: as many values as indices are needed");
  weights.column_of_.reserve(indices.size());
  std::int64_t last = -1;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::int64_t index = indices[i];
    if (index <= last || index >= rows * columns) {
      throw std::invalid_argument("weights: indices must ascend strictly and lie within rows x columns");
    }
    last = index;
    const std::int64_t row = index / columns;
    while (static_cast<std::int64_t>(weights.starts_.size()) <= row) weights.starts_.push_back(i);
    weights.column_of_.push_back(static_cast<std::uint32_t>(index % columns));
  }
  while (static_cast<std::int64_t>(weights.starts_.size()) <= rows) weights.starts_.push_back(indices.size());
  weights.values_.assign(values.begin(), values.end());
  return weights;
}

SparseWeights::Builder::Builder(std::int64_t rows, std::int64_t columns, std::int64_t nnz) : weights_(rows, columns) {
  weights_.column_of_.reserve(static_cast<std::size_t>(nnz));
  weights_.values_.reserve(static_cast<std::size_t>(nnz));
}

double SparseWeights::density() const {
  const double size = static_cast<double>(rows_) * static_cast<double>(columns_);
  return size == 0 ? 0 : static_cast<double>(nnz()) / size;
}

std::int64_t SparseWeights::bytes() const {
  return static_cast<std::int64_t>(starts_.capacity() * sizeof(starts_[0]) +
                                   column_of_.capacity() * sizeof(column_of_[0]) +
                                   values_.capacity() * sizeof(values_[0]));
}

std::span<const std::uint32_t> SparseWeights::row_columns(std::int64_t row) const {
  const auto at = static_cast<std::size_t>(row);
  return std::span(column_of_).subspan(starts_[at], starts_[at + 1] - starts_[at]);
}

std::span<const float> SparseWeights::row_values(std::int64_t row) const {
  const auto at = static_cast<std::size_t>(row);
  return std::span(values_).subspan(starts_[at], starts_[at + 1] - starts_[at]);
}

}  // namespace sift::cpu
