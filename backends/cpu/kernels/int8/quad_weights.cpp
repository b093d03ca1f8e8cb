#include "int8/quad_weights.h"

#include <algorithm>
#include <stdexcept>

#include "base/op.h"
#include "simd/int8/kernel_table.h"

namespace sift::cpu {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 31;

}  // namespace

std::uint32_t take_quad(std::span<int, kQuad> numbers, int most) {
  std::uint32_t packed = 0;
  for (std::size_t k = 0; k < kQuad; ++k) {
    const int taken = std::clamp(numbers[k], -most, std::min(most, 127));
    numbers[k] -= taken;
    packed |= std::uint32_t{static_cast<std::uint8_t>(taken)} << (8 * k);
  }
  return packed;
}

QuadWeights::QuadWeights(std::int64_t rows, std::int64_t channels, std::int64_t kernel_h, std::int64_t kernel_w,
                         std::int64_t groups)
    : rows_(rows), channels_(channels), kernel_h_(kernel_h), kernel_w_(kernel_w), groups_(groups) {
  for (const std::int64_t size : {rows, channels, kernel_h, kernel_w, groups}) {
    if (size < 1 || size >= kMost) throw std::invalid_argument("quad weights: sizes must be positive and below 2**31");
  }
  if (rows % groups != 0 || channels % groups != 0) {
    throw std::invalid_argument("quad weights: groups do not divide rows and channels");
  }
  // The first comparison rules out sizes whose product runs over.
  if (kernel_h * kernel_w >= kMost || channel_quads() * taps() >= kMost) {
    throw std::invalid_argument("quad weights: too many columns");
  }
  starts_.push_back(0);
}

QuadWeights::QuadWeights(std::int64_t rows, std::int64_t channels, std::int64_t kernel_h, std::int64_t kernel_w,
                         std::int64_t groups, std::span<const std::int8_t> values)
    : QuadWeights(rows, channels, kernel_h, kernel_w, groups) {
  list(values);
}

QuadWeights::QuadWeights(std::int64_t rows, std::int64_t channels, std::int64_t kernel_h, std::int64_t kernel_w,
                         std::int64_t groups, std::span<const std::int16_t> values)
    : QuadWeights(rows, channels, kernel_h, kernel_w, groups) {
  list(values);
}

template <typename Value>
void QuadWeights::list(std::span<const Value> values) {
  const std::int64_t of_group = channels_ / groups_;
  const auto count = static_cast<std::int64_t>(values.size());
  // Of a group's channels and taps, which are below 2^31, there are below 2^62.
  if (count / rows_ != of_group * taps() || count % rows_ != 0) {
    throw std::invalid_argument("quad weights: not as many values as rows, channels of a group and taps");
  }
  if (count / 4 >= kMost) throw std::invalid_argument("quad weights: too many columns");
  starts_.reserve(static_cast<std::size_t>(rows_) + 1);
  row_sums_.reserve(static_cast<std::size_t>(rows_));
  for (std::int64_t row = 0; row < rows_; ++row) {
    const Value* const from = values.data() + row * of_group * taps();
    const std::int64_t first = row / (rows_ / groups_) * of_group;
    std::uint32_t sum = 0;
    for (std::int64_t quad = first / kQuad; quad * kQuad < first + of_group; ++quad) {
      for (std::int64_t tap = 0; tap < taps(); ++tap) {
        int rest[kQuad] = {};
        for (std::int64_t k = 0; k < kQuad; ++k) {
          const std::int64_t channel = quad * kQuad + k - first;
          if (channel >= 0 && channel < of_group) rest[k] = from[channel * taps() + tap];
          sum += static_cast<std::uint32_t>(rest[k]);
        }
        while (const std::uint32_t packed = take_quad(rest, 128)) {
          columns_.push_back(static_cast<std::uint32_t>(quad * taps() + tap));
          quads_.push_back(packed);
        }
      }
    }
    if (quads_.size() >= static_cast<std::size_t>(kMost)) {
      throw std::invalid_argument("quad weights: too many quads");
    }
    starts_.push_back(static_cast<std::uint32_t>(quads_.size()));
    row_sums_.push_back(static_cast<std::int32_t>(sum));
  }
}

QuadWeights QuadWeights::from_rows(std::int64_t rows, std::int64_t channels, std::int64_t kernel_h,
                                   std::int64_t kernel_w, std::int64_t groups, std::span<const std::uint32_t> counts,
                                   std::span<const std::uint32_t> columns, std::span<const std::uint32_t> quads) {
  QuadWeights weights(rows, channels, kernel_h, kernel_w, groups);
  if (counts.size() != static_cast<std::size_t>(rows) || columns.size() != quads.size()) {
    throw std::invalid_argument("quad weights: there is a count for each row, and a column for each quad");
  }
  std::size_t first = 0;
  for (const std::uint32_t count : counts) {
    if (count > quads.size() - first)
      throw std::invalid_argument("quad weights: the rows have more quads than there are");
    std::uint32_t sum = 0;
    for (std::size_t i = first; i < first + count; ++i) {
      const bool descends = i > first && columns[i] < columns[i - 1];
      if (descends || columns[i] >= weights.channel_quads() * weights.taps()) {
        throw std::invalid_argument("quad weights: columns must not descend within a row and lie within the weights");
      }
      for (int shift = 0; shift < 32; shift += 8) {
        sum += static_cast<std::uint32_t>(static_cast<std::int8_t>(quads[i] >> shift & 0xff));
      }
    }
    first += count;
    weights.starts_.push_back(static_cast<std::uint32_t>(first));
    weights.row_sums_.push_back(static_cast<std::int32_t>(sum));
  }
  if (first != quads.size()) throw std::invalid_argument("quad weights: the rows have fewer quads than there are");
  weights.columns_.assign(columns.begin(), columns.end());
  weights.quads_.assign(quads.begin(), quads.end());
  return weights;
}

std::int64_t QuadWeights::all_quads() const { return rows_ * ceil_div(channels_ / groups_, kQuad) * taps(); }

std::int64_t QuadWeights::bytes() const {
  return static_cast<std::int64_t>(sizeof(std::uint32_t) * (starts_.size() + columns_.size() + quads_.size()) +
                                   sizeof(std::int32_t) * row_sums_.size());
}

}  // namespace sift::cpu
