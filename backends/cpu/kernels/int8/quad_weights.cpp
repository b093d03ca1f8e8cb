#include "int8/quad_weights.h"

#include <stdexcept>

#include "base/op.h"
#include "simd/int8/kernel_table.h"

namespace sift::cpu {

QuadWeights::QuadWeights(std::int64_t rows, std::int64_t channels, std::int64_t kernel_h, std::int64_t kernel_w,
                         std::int64_t groups, std::span<const std::int8_t> values)
    : rows_(rows), channels_(channels), kernel_h_(kernel_h), kernel_w_(kernel_w), groups_(groups) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  for (const std::int64_t size : {rows, channels, kernel_h, kernel_w, groups}) {
    if (size < 1 || size >= kMost) throw std::invalid_argument("quad weights: sizes must be positive and below 2**31");
  }
  if (rows % groups != 0 || channels % groups != 0) {
    throw std::invalid_argument("quad weights: groups do not divide rows and channels");
  }
  const std::int64_t of_group = channels / groups;
  const auto count = static_cast<std::int64_t>(values.size());
  // The second comparison first rules out sizes whose product runs over.
  if (kernel_h > count || kernel_w > count || of_group * kernel_h > count || of_group * kernel_h * kernel_w > count ||
      count / rows != of_group * kernel_h * kernel_w || count % rows != 0) {
    throw std::invalid_argument("quad weights: not as many values as rows, channels of a group and taps");
  }
  if (channel_quads() * taps() >= kMost || count / 4 >= kMost) {
    throw std::invalid_argument("quad weights: too many columns");
  }
  starts_.reserve(static_cast<std::size_t>(rows) + 1);
  starts_.push_back(0);
  row_sums_.reserve(static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int8_t* const from = values.data() + row * of_group * taps();
    const std::int64_t first = row / (rows / groups) * of_group;
    std::uint32_t sum = 0;
    for (std::int64_t quad = first / kQuad; quad * kQuad < first + of_group; ++quad) {
      for (std::int64_t tap = 0; tap < taps(); ++tap) {
        std::uint32_t packed = 0;
        for (std::int64_t k = 0; k < kQuad; ++k) {
          const std::int64_t channel = quad * kQuad + k - first;
          if (channel < 0 || channel >= of_group) continue;
          const std::int8_t value = from[channel * taps() + tap];
          sum += static_cast<std::uint32_t>(value);
          packed |= std::uint32_t{static_cast<std::uint8_t>(value)} << (8 * k);
        }
        if (packed == 0) continue;
        columns_.push_back(static_cast<std::uint32_t>(quad * taps() + tap));
        quads_.push_back(packed);
      }
    }
    starts_.push_back(static_cast<std::uint32_t>(quads_.size()));
    row_sums_.push_back(static_cast<std::int32_t>(sum));
  }
}

std::int64_t QuadWeights::all_quads() const { return rows_ * ceil_div(channels_ / groups_, kQuad) * taps(); }

std::int64_t QuadWeights::bytes() const {
  return static_cast<std::int64_t>(sizeof(std::uint32_t) * (starts_.size() + columns_.size() + quads_.size()) +
                                   sizeof(std::int32_t) * row_sums_.size());
}

}  // namespace sift::cpu
