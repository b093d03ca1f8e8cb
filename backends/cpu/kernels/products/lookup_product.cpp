#include "products/lookup_product.h"

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>

#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// Columns of x that a group chooses from: two registers but for one lane, which is zero.
constexpr std::int64_t kColumns = 31;
constexpr std::uint32_t kZero = 31;
constexpr std::uint32_t kAllZero = kZero * 0x01010101U;
constexpr std::int64_t kMostColumns = 1 << 16;
// Denser weights are faster as bits and values, or dense.
constexpr double kMostDensity = 0.55;
// Multiply-adds below which waking the other threads costs more than they save.
constexpr std::int64_t kAlone = 1 << 17;

// Calls use(lane, entries) for the rows of a block, entries of the columns [first, end) as (first entry, count), whose
// first entries so far are in `at`.
template <typename Use>
void each_row(const SparseWeights& weights, std::int64_t first_row, std::int64_t rows, std::int64_t end,
              std::array<std::size_t, kLanes>& at, Use use) {
  for (std::int64_t lane = 0; lane < rows; ++lane) {
    const auto columns = weights.row_columns(first_row + lane);
    std::size_t& next = at[static_cast<std::size_t>(lane)];
    const std::size_t begin = next;
    while (next < columns.size() && columns[next] < end) ++next;
    use(lane, begin, next - begin);
  }
}

// Calls segment(first column, groups, entries before) for 31 columns after the other of a block of rows.
template <typename Segment>
void each_segment(const SparseWeights& weights, std::int64_t first_row, std::int64_t rows, Segment segment) {
  std::array<std::size_t, kLanes> at{};
  for (std::int64_t first = 0; first < weights.columns(); first += kColumns) {
    const std::array<std::size_t, kLanes> before = at;
    std::size_t most = 0;
    each_row(weights, first_row, rows, first + kColumns, at,
             [&](std::int64_t, std::size_t, std::size_t count) { most = std::max(most, count); });
    segment(first, ceil_div(static_cast<std::int64_t>(most), kLookupSlots), before);
  }
}

std::int64_t groups_of(const SparseWeights& weights, std::int64_t first_row) {
  std::int64_t groups = 0;
  each_segment(weights, first_row, std::min(kLanes, weights.rows() - first_row),
               [&](std::int64_t, std::int64_t count, const auto&) { groups += count; });
  return groups;
}

}  // namespace

std::int64_t LookupProduct::packed_bytes(const SparseWeights& weights, const KernelTable& kernels) {
  if (lookup_of(kernels) == nullptr || weights.columns() < kColumns || weights.columns() > kMostColumns ||
      weights.density() > kMostDensity) {
    return kUnsuited;
  }
  std::int64_t groups = 0;
  for (std::int64_t row = 0; row < weights.rows(); row += kLanes) groups += groups_of(weights, row);
  return groups * (kLookupSlots * kLanes * 5 + 2);
}

LookupProduct::LookupProduct(const SparseWeights& weights, const std::vector<float>& bias, const KernelTable& kernels)
    : rows_(weights.rows()),
      columns_(weights.columns()),
      nnz_(weights.nnz()),
      lookup_(lookup_of(kernels)),
      bias_(bias) {
  if (packed_bytes(weights, kernels) == kUnsuited) throw std::invalid_argument("lookup product: unsuited weights");
  bias_.resize(static_cast<std::size_t>(ceil_div(rows_, kLanes) * kLanes), 0.0F);
  std::int64_t groups = 0;
  for (std::int64_t row = 0; row < rows_; row += kLanes) {
    block_groups_.push_back(groups);
    groups += groups_of(weights, row);
  }
  block_groups_.push_back(groups);
  first_columns_.resize(static_cast<std::size_t>(groups));
  const std::int64_t value_count = groups * kLookupSlots * kLanes;
  values_ = memory_.floats(static_cast<std::size_t>(value_count + groups * kLanes));
  places_ = reinterpret_cast<std::uint32_t*>(values_ + value_count);
  std::fill_n(values_, value_count, 0.0F);
  std::fill_n(places_, groups * kLanes, kAllZero);
  for (std::int64_t row = 0; row < rows_; row += kLanes) pack_block(weights, row);
}

void LookupProduct::pack_block(const SparseWeights& weights, std::int64_t first_row) {
  const std::int64_t rows = std::min(kLanes, rows_ - first_row);
  std::int64_t group = block_groups_[static_cast<std::size_t>(first_row / kLanes)];
  each_segment(weights, first_row, rows, [&](std::int64_t first, std::int64_t groups, const auto& before) {
    // The last columns are read with others before them: nothing is read behind x.
    const std::int64_t read = std::min(first, columns_ - kColumns);
    auto at = before;
    each_row(weights, first_row, rows, first + kColumns, at,
             [&](std::int64_t lane, std::size_t begin, std::size_t count) {
               const auto columns = weights.row_columns(first_row + lane).subspan(begin, count);
               const auto values = weights.row_values(first_row + lane).subspan(begin, count);
               for (std::size_t i = 0; i < count; ++i) {
                 const auto slot = static_cast<std::int64_t>(i);
                 const std::int64_t to = group + slot / kLookupSlots;
                 const auto shift = static_cast<std::uint32_t>(8 * (slot % kLookupSlots));
                 std::uint32_t& place = places_[to * kLanes + lane];
                 // Bits of the zero that it had are all set.
                 place ^= (kZero ^ static_cast<std::uint32_t>(columns[i] - read)) << shift;
                 values_[(group * kLookupSlots + slot) * kLanes + lane] = values[i];
               }
             });
    for (std::int64_t i = 0; i < groups; ++i) {
      first_columns_[static_cast<std::size_t>(group + i)] = static_cast<std::uint16_t>(read);
    }
    group += groups;
  });
}

Shape LookupProduct::output_shape(const Shape& in) const {
  if (in.c != columns_ || in.h != 1 || in.w != 1) {
    throw std::invalid_argument("lookup product: the input must be [m][columns of the weights]");
  }
  return {in.n, rows_, 1, 1};
}

std::int64_t LookupProduct::weight_bytes() const {
  return static_cast<std::int64_t>((bias_.size() + memory_.capacity()) * sizeof(float) +
                                   first_columns_.size() * sizeof(std::uint16_t));
}

void LookupProduct::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  output_shape(shape);
  const std::int64_t blocks = ceil_div(rows_, kLanes);
  const auto multiply = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t first = block_groups_[static_cast<std::size_t>(block)];
      LookupArgs args{};
      args.columns = first_columns_.data() + first;
      args.places = places_ + first * kLanes;
      args.values = values_ + first * kLookupSlots * kLanes;
      args.groups = block_groups_[static_cast<std::size_t>(block) + 1] - first;
      args.bias = bias_.data() + block * kLanes;
      args.rows = static_cast<int>(std::min(kLanes, rows_ - block * kLanes));
      args.x_stride = columns_;
      args.out_stride = rows_;
      for (std::int64_t row = 0; row < shape.n; row += kMostLookedUp) {
        args.x = in + row * columns_;
        args.x_rows = static_cast<int>(std::min<std::int64_t>(kMostLookedUp, shape.n - row));
        args.out = out + row * rows_ + block * kLanes;
        lookup_(args);
      }
    }
  };
  if (nnz_ * shape.n < kAlone || pool.threads() == 1) return multiply(0, blocks);
  const std::int64_t parts = std::min<std::int64_t>(blocks, 2 * pool.threads());
  pool.parallel_for(parts, [&](std::int64_t part) { multiply(blocks * part / parts, blocks * (part + 1) / parts); });
}

}  // namespace sift::cpu
