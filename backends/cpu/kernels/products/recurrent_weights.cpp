#include "products/recurrent_weights.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "base/cache.h"
#include "conv/conv.h"
#include "products/lookup_product.h"
#include "products/matmul.h"

namespace sift::cpu {
namespace {

SparseWeights rows_of(const SparseWeights& weights, std::int64_t first, std::int64_t count) {
  std::int64_t nnz = 0;
  for (std::int64_t row = first; row < first + count; ++row) {
    nnz += static_cast<std::int64_t>(weights.row_values(row).size());
  }
  if (nnz == count * weights.columns()) {
    std::vector<float> all;
    all.reserve(static_cast<std::size_t>(nnz));
    for (std::int64_t row = first; row < first + count; ++row) {
      const auto values = weights.row_values(row);
      all.insert(all.end(), values.begin(), values.end());
    }
    return SparseWeights::from_all(count, weights.columns(), all);
  }
  SparseWeights::Builder builder(count, weights.columns(), nnz);
  for (std::int64_t row = first; row < first + count; ++row) {
    const auto columns = weights.row_columns(row);
    const auto values = weights.row_values(row);
    for (std::size_t i = 0; i < values.size(); ++i) builder.add(columns[i], values[i]);
    builder.end_row();
  }
  return builder.take();
}

}  // namespace

RecurrentWeights::RecurrentWeights(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias,
                                   std::int64_t directions, std::vector<std::int64_t> parts, const KernelTable& kernels)
    : weights_(std::move(weights)),
      bias_(std::move(bias)),
      directions_(directions),
      parts_(std::move(parts)),
      kernels_(kernels) {
  if (!weights_) throw std::invalid_argument("recurrent: it has no weights");
  const std::int64_t rows = std::accumulate(parts_.begin(), parts_.end(), std::int64_t{0});
  if (directions < 1 || directions > 2 || rows < 1 || weights_->columns() < 1 ||
      weights_->rows() != directions * rows) {
    throw std::invalid_argument("recurrent: the weights must be [directions * gates * hidden][hidden]");
  }
  if (!bias_.empty() && static_cast<std::int64_t>(bias_.size()) != weights_->rows()) {
    throw std::invalid_argument("recurrent: one bias per row of the weights");
  }
  // The weights of a direction should stay in the second-level cache. If all of them come from behind it, lookups take
  // as long as bits and values, which are half as many bytes.
  const std::int64_t bytes = LookupProduct::packed_bytes(*weights_, kernels_);
  looks_up_ = bytes != LookupProduct::kUnsuited && bytes / directions <= level2_cache_bytes() / 4 * 5;
  // Of lists, six bytes each.
  fit_cache_ = (looks_up_ ? bytes : 6 * weights_->nnz()) / directions <= level2_cache_bytes() / 4 * 3;
}

std::int64_t RecurrentWeights::bytes() const {
  const std::lock_guard lock(mutex_);
  std::int64_t bytes = weights_->bytes();
  for (const Products* products : {&few_, &lanes_}) {
    for (const auto& product : *products) bytes += product->weight_bytes();
  }
  return bytes;
}

std::vector<std::shared_ptr<const Op>> RecurrentWeights::products(std::int64_t direction, Layout layout) const {
  const std::lock_guard lock(mutex_);
  const Products& found = locked_products(layout);
  const auto begin = found.begin() + static_cast<std::ptrdiff_t>(direction * static_cast<std::int64_t>(parts_.size()));
  return {begin, begin + static_cast<std::ptrdiff_t>(parts_.size())};
}

const RecurrentWeights::Products& RecurrentWeights::locked_products(Layout layout) const {
  Products& found = layout == Layout::nchw ? few_ : lanes_;
  if (found.empty()) {
    Products products;
    std::int64_t first = 0;
    for (std::int64_t of = 0; of < directions_; ++of) {
      for (const std::int64_t count : parts_) {
        products.push_back(made(first, count, layout));
        first += count;
      }
    }
    found = std::move(products);
  }
  return found;
}

bool RecurrentWeights::sums_alike(std::int64_t rows, std::int64_t others) const {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = alike_.try_emplace({rows, others}, false);
  if (is_new) {
    known->second = std::ranges::all_of(locked_products(Layout::nchw_n16), [&](const auto& product) {
      const auto& own = static_cast<const Conv&>(*product);
      return own.sum_order({rows, hidden(), 1, 1}) == own.sum_order({others, hidden(), 1, 1});
    });
  }
  return known->second;
}

void RecurrentWeights::release_sources() const {
  const std::lock_guard lock(mutex_);
  for (const auto& product : lanes_) static_cast<const Conv&>(*product).release_source();
}

std::shared_ptr<const Op> RecurrentWeights::made(std::int64_t first, std::int64_t count, Layout layout) const {
  SparseWeights own = rows_of(*weights_, first, count);
  std::vector<float> bias;
  if (!bias_.empty()) bias.assign(bias_.begin() + first, bias_.begin() + first + count);
  if (layout == Layout::nchw) {
    if (looks_up_) return std::make_shared<const LookupProduct>(own, bias, kernels_);
    return std::make_shared<const Matmul>(own, std::move(bias), Activation{}, kernels_);
  }
  ConvOptions options;
  options.layout = layout;
  return std::make_shared<const Conv>(std::make_shared<const SparseWeights>(std::move(own)), std::move(bias), options,
                                      kernels_);
}

}  // namespace sift::cpu
