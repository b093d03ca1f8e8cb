#include "int8/shared_taps.h"

#include <span>
#include <vector>

#include "base/op.h"
#include "simd/int8/kernel_table.h"

namespace sift::cpu {
namespace {

// Where a tap's channel is in the shared quads.
std::int64_t byte_of(std::int64_t tap, std::int64_t channel, std::int64_t channels) {
  if (channels < 3) return tap * channels + channel;
  const std::int64_t first = tap / 4 * 3;
  return tap % 4 == 3 ? (first + channel) * kQuad + 3 : (first + tap % 4) * kQuad + channel;
}

}  // namespace

std::int64_t shared_quads(std::int64_t taps, std::int64_t channels) {
  return channels < 3 ? ceil_div(taps * channels, kQuad) : taps / 4 * 3 + taps % 4;
}

QuadWeights with_shared_taps(const QuadWeights& weights) {
  const std::int64_t bytes = shared_quads(weights.taps(), weights.channels()) * kQuad;
  std::vector<std::int16_t> values(static_cast<std::size_t>(weights.rows() * bytes));
  for (std::int64_t row = 0; row < weights.rows(); ++row) {
    std::int16_t* const own = values.data() + row * bytes;
    for (std::uint32_t i = weights.starts()[static_cast<std::size_t>(row)];
         i < weights.starts()[static_cast<std::size_t>(row) + 1]; ++i) {
      // With one quad of channels, a column is a tap.
      for (std::int64_t k = 0; k < weights.channels(); ++k) {
        const auto value = static_cast<std::int8_t>(weights.quads()[i] >> (8 * k) & 0xff);
        std::int16_t& sum = own[byte_of(weights.columns()[i], k, weights.channels())];
        sum = static_cast<std::int16_t>(sum + value);
      }
    }
  }
  return {weights.rows(), bytes, 1, 1, 1, std::span<const std::int16_t>(values)};
}

}  // namespace sift::cpu
