#include "weights/sparse_weights.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace sift::cpu {
namespace {

std::string shape_of(std::int64_t rows, std::int64_t columns) {
  return std::to_string(rows) + " x " + std::to_string(columns);
}

void require_size(std::int64_t rows, std::int64_t columns, std::span<const float> dense) {
  if (static_cast<std::int64_t>(dense.size()) != rows * columns) {
    throw std::invalid_argument("weights: the dense array has " + std::to_string(dense.size()) + " values, and not " +
                                shape_of(rows, columns));
  }
}

void require_mask(std::span<const float> dense, std::span<const std::uint8_t> mask) {
  const std::size_t expected = (dense.size() + 7) / 8;
  if (!mask.empty() && mask.size() != expected) {
    throw std::invalid_argument("weights: a mask has one bit per value, filled up to bytes: " +
                                std::to_string(expected) + " bytes, and not " + std::to_string(mask.size()));
  }
}

std::uint32_t count_non_zeros(std::span<const float> values) {
  std::uint32_t count = 0;
  for (const float value : values) count += value != 0.0F;
  return count;
}

}  // namespace

SparseWeights::SparseWeights(std::int64_t rows, std::int64_t columns) : rows_(rows), columns_(columns) {
  if (rows < 0 || columns < 0 || columns > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("weights: rows and columns must not be negative, and columns fit 32 bits: " +
                                shape_of(rows, columns));
  }
  if (columns > 0 && rows > std::numeric_limits<std::int64_t>::max() / columns) {
    throw std::invalid_argument("weights: rows x columns must fit 64 bits: " + shape_of(rows, columns));
  }
  starts_.reserve(static_cast<std::size_t>(rows) + 1);
  starts_.push_back(0);
}

SparseWeights SparseWeights::from_dense(std::int64_t rows, std::int64_t columns, std::span<const float> dense,
                                        bool transposed, std::span<const std::uint8_t> mask) {
  SparseWeights weights(rows, columns);
  require_size(rows, columns, dense);
  require_mask(dense, mask);
  // Counted first: memory is allocated once, and as much as is needed.
  const auto row_count = static_cast<std::size_t>(rows);
  const auto column_count = static_cast<std::size_t>(columns);
  const MaskBits bits(mask);
  weights.starts_.assign(row_count + 1, 0);
  for (std::size_t major = 0; major < (transposed ? column_count : row_count); ++major) {
    if (!transposed) {
      const std::size_t first = major * column_count;
      weights.starts_[major + 1] =
          mask.empty() ? count_non_zeros(dense.subspan(first, column_count)) : bits.count(first, first + column_count);
    } else if (mask.empty()) {
      const float* const value = dense.data() + major * row_count;
      for (std::size_t row = 0; row < row_count; ++row) weights.starts_[row + 1] += value[row] != 0.0F;
    } else {
      const std::size_t first = major * row_count;
      bits.for_each(first, first + row_count, [&](std::size_t at) { ++weights.starts_[at - first + 1]; });
    }
  }
  std::partial_sum(weights.starts_.begin(), weights.starts_.end(), weights.starts_.begin());
  if (static_cast<double>(weights.starts_.back()) > kDenseAbove * static_cast<double>(dense.size())) {
    weights.list_all(dense, transposed);
  } else if (mask.empty()) {
    weights.list_non_zeros(dense, transposed);
  } else {
    weights.list_active(dense, transposed, bits);
  }
  return weights;
}

SparseWeights SparseWeights::from_all(std::int64_t rows, std::int64_t columns, std::span<const float> dense) {
  SparseWeights weights(rows, columns);
  require_size(rows, columns, dense);
  weights.list_all(dense, false);
  return weights;
}

void SparseWeights::list_active(std::span<const float> dense, bool transposed, MaskBits mask) {
  const auto row_count = static_cast<std::size_t>(rows_);
  const auto column_count = static_cast<std::size_t>(columns_);
  column_of_.resize(starts_.back());
  values_.resize(starts_.back());
  if (transposed) {
    std::vector<std::size_t> next(starts_.begin(), starts_.end() - 1);
    for (std::size_t column = 0; column < column_count; ++column) {
      const std::size_t first = column * row_count;
      mask.for_each(first, first + row_count, [&](std::size_t at) {
        std::size_t& place = next[at - first];
        column_of_[place] = static_cast<std::uint32_t>(column);
        values_[place++] = dense[at];
      });
    }
    return;
  }
  std::size_t place = 0;
  for (std::size_t row = 0; row < row_count; ++row) {
    const std::size_t first = row * column_count;
    mask.for_each(first, first + column_count, [&](std::size_t at) {
      column_of_[place] = static_cast<std::uint32_t>(at - first);
      values_[place++] = dense[at];
    });
  }
}

void SparseWeights::list_non_zeros(std::span<const float> dense, bool transposed) {
  const auto row_count = static_cast<std::size_t>(rows_);
  const auto column_count = static_cast<std::size_t>(columns_);
  // One more: without a branch, zeros are written too, and then overwritten.
  column_of_.resize(starts_.back() + 1);
  values_.resize(starts_.back() + 1);
  if (transposed) {
    std::vector<std::size_t> next(starts_.begin(), starts_.end() - 1);
    const float* value = dense.data();
    for (std::size_t column = 0; column < column_count; ++column) {
      for (std::size_t row = 0; row < row_count; ++row, ++value) {
        if (*value == 0.0F) continue;
        column_of_[next[row]] = static_cast<std::uint32_t>(column);
        values_[next[row]++] = *value;
      }
    }
  } else {
    std::uint32_t* const column_of = column_of_.data();
    float* const values = values_.data();
    const float* value = dense.data();
    std::size_t at = 0;
    for (std::size_t row = 0; row < row_count; ++row) {
      for (std::size_t column = 0; column < column_count; ++column, ++value) {
        column_of[at] = static_cast<std::uint32_t>(column);
        values[at] = *value;
        at += *value != 0.0F;
      }
    }
  }
  column_of_.pop_back();
  values_.pop_back();
}

void SparseWeights::list_all(std::span<const float> dense, bool transposed) {
  const auto row_count = static_cast<std::size_t>(rows_);
  const auto column_count = static_cast<std::size_t>(columns_);
  lists_all_ = true;
  starts_.resize(row_count + 1);
  for (std::size_t row = 0; row <= row_count; ++row) starts_[row] = row * column_count;
  column_of_.resize(column_count);
  std::iota(column_of_.begin(), column_of_.end(), 0U);
  if (!transposed) {
    values_.assign(dense.begin(), dense.end());
    return;
  }
  values_.resize(dense.size());
  // Square by square, so that the lines of both sides stay in the cache.
  constexpr std::size_t kSide = 32;
  for (std::size_t first_column = 0; first_column < column_count; first_column += kSide) {
    const std::size_t last_column = std::min(first_column + kSide, column_count);
    for (std::size_t first_row = 0; first_row < row_count; first_row += kSide) {
      const std::size_t last_row = std::min(first_row + kSide, row_count);
      for (std::size_t row = first_row; row < last_row; ++row) {
        for (std::size_t column = first_column; column < last_column; ++column) {
          values_[row * column_count + column] = dense[column * row_count + row];
        }
      }
    }
  }
}

SparseWeights SparseWeights::scaled(std::span<const float> factors) const {
  if (static_cast<std::int64_t>(factors.size()) != rows_) {
    throw std::invalid_argument("weights: one factor per row is needed: " + std::to_string(rows_) + ", and not " +
                                std::to_string(factors.size()));
  }
  SparseWeights weights = *this;
  for (std::size_t row = 0; row < factors.size(); ++row) {
    for (std::size_t i = starts_[row]; i < starts_[row + 1]; ++i) weights.values_[i] *= factors[row];
  }
  return weights;
}

WeightCount count_weights(std::span<const float> dense, std::span<const std::uint8_t> mask) {
  require_mask(dense, mask);
  // Infinity and NaN have an exponent of ones. Blocks keep the counters of a vectorised loop narrow.
  constexpr std::uint32_t kExponent = 0x7f800000U;
  constexpr std::size_t kBlock = 1 << 16;
  WeightCount result;
  for (std::size_t first = 0; first < dense.size(); first += kBlock) {
    const std::span<const float> block = dense.subspan(first, std::min(kBlock, dense.size() - first));
    std::uint32_t nnz = 0;
    std::uint32_t strange = 0;
    for (const float value : block) {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      nnz += (bits << 1) != 0;
      strange |= static_cast<std::uint32_t>((bits & kExponent) == kExponent);
    }
    result.nnz += nnz;
    result.finite = result.finite && strange == 0;
  }
  if (!mask.empty()) result.nnz = static_cast<std::int64_t>(MaskBits(mask).count(0, dense.size()));
  return result;
}

SparseWeights SparseWeights::from_indices(std::int64_t rows, std::int64_t columns,
                                          std::span<const std::int64_t> indices, std::span<const float> values) {
  SparseWeights weights(rows, columns);
  if (indices.size() != values.size()) {
    throw std::invalid_argument("weights: as many values as indices are needed: " + std::to_string(indices.size()) +
                                ", and not " + std::to_string(values.size()));
  }
  weights.column_of_.reserve(indices.size());
  std::int64_t last = -1;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::int64_t index = indices[i];
    if (index <= last || index >= rows * columns) {
      throw std::invalid_argument("weights: indices must ascend strictly and lie within " + shape_of(rows, columns) +
                                  ": " + std::to_string(index) + " follows " + std::to_string(last));
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
  if (lists_all_) return column_of_;
  return std::span(column_of_).subspan(starts_[at], starts_[at + 1] - starts_[at]);
}

std::span<const float> SparseWeights::row_values(std::int64_t row) const {
  const auto at = static_cast<std::size_t>(row);
  return std::span(values_).subspan(starts_[at], starts_[at + 1] - starts_[at]);
}

}  // namespace sift::cpu
