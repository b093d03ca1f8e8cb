#include "products/dense_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "products/strassen.h"

namespace sift::cpu {
namespace {

// Columns of a slice: its half of a tile, and of a block of tokens, lie in the second-level cache.
constexpr std::int64_t kMostColumns = 1024;
constexpr std::int64_t kColumnMultiple = 32;
constexpr double kLeastDensity = 0.5;
// Below, additions take what multiplications save.
constexpr std::int64_t kLeastHalved = 256;  // columns
constexpr std::int64_t kLeastBlocks = 8;    // of tokens

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

DenseProduct::DenseProduct(const SparseWeights& weights, std::vector<float> bias, Activation activation,
                           const KernelTable& kernels)
    : rows_(weights.rows()),
      columns_(weights.columns()),
      activation_(activation),
      kernels_(kernels),
      bias_(std::move(bias)) {
  if (rows_ == 0 || columns_ == 0) throw std::invalid_argument("dense product: the weights are empty");
  if (weights.density() < kLeastDensity) {
    throw std::invalid_argument("dense product: most of the weights are zero");
  }
  if (!bias_.empty() && static_cast<std::int64_t>(bias_.size()) != rows_) {
    throw std::invalid_argument("dense product: one bias per row of the weights");
  }
  slices_ = ceil_div(columns_, kMostColumns);
  slice_columns_ = ceil_div(ceil_div(columns_, slices_), kColumnMultiple) * kColumnMultiple;
  const std::int64_t tile_rows = kernels_.dense_rows;
  tiles_ = ceil_div(rows_, 2 * tile_rows) * 2;
  bias_.resize(index(tiles_ * tile_rows), 0.0F);
  row_scales_.resize(index(tiles_ * tile_rows), 1.0F);
  weights_ = memory_.floats(index(weight_count()));
  std::memset(weights_, 0, index(weight_count()) * sizeof(float));
  for (std::int64_t row = 0; row < rows_; ++row) {
    const auto columns = weights.row_columns(row);
    const auto values = weights.row_values(row);
    float most = 0;
    for (const float value : values) most = std::max(most, std::abs(value));
    finite_ = finite_ && std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
    const int exponent = exponent_of(most);
    row_scales_[index(row)] = std::ldexp(1.0F, exponent);
    const float scale = std::ldexp(1.0F, -exponent);
    for (std::size_t i = 0; i < columns.size(); ++i) weights_[place_of(row, columns[i])] = values[i] * scale;
  }
}

Shape DenseProduct::output_shape(const Shape& in) const {
  if (in.n < 0 || in.c != columns_ || in.h != 1 || in.w != 1) {
    throw std::invalid_argument("dense product: the input must be [m][columns of the weights]");
  }
  return {in.n, rows_, 1, 1};
}

std::int64_t DenseProduct::weight_bytes() const {
  return static_cast<std::int64_t>((bias_.size() + row_scales_.size() + index(weight_count())) * sizeof(float));
}

bool DenseProduct::halves(const Shape& shape) const {
  return finite_ && slice_columns_ >= kLeastHalved && rows_ > kernels_.dense_rows &&
         ceil_div(shape.n, kLanes) >= kLeastBlocks;
}

std::int64_t DenseProduct::place_of(std::int64_t row, std::int64_t column) const {
  const std::int64_t tile_rows = kernels_.dense_rows;
  return ((column / slice_columns_ * tiles_ + row / tile_rows) * slice_columns_ + column % slice_columns_) * tile_rows +
         row % tile_rows;
}

std::shared_ptr<const SparseWeights> DenseProduct::source() const {
  std::vector<float> all;
  all.reserve(index(rows_ * columns_));
  for (std::int64_t row = 0; row < rows_; ++row) {
    const float scale = row_scales_[index(row)];
    for (std::int64_t column = 0; column < columns_; ++column) all.push_back(weights_[place_of(row, column)] * scale);
  }
  return std::make_shared<const SparseWeights>(SparseWeights::from_all(rows_, columns_, all));
}

// Of a slice, those that are there.
std::int64_t DenseProduct::columns_of(std::int64_t slice) const {
  return std::clamp<std::int64_t>(columns_ - slice * slice_columns_, 0, slice_columns_);
}

}  // namespace sift::cpu
