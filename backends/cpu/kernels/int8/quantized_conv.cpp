#include "int8/quantized_conv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "int8/conversions.h"
#include "int8/exact_quotients.h"
#include "int8/positions.h"

namespace sift::cpu {
namespace {

// One multiplier for each row.
std::vector<float> spread(std::vector<float> multipliers, std::int64_t rows) {
  if (multipliers.size() == 1) multipliers.resize(static_cast<std::size_t>(rows), multipliers.front());
  if (static_cast<std::int64_t>(multipliers.size()) != rows) {
    throw std::invalid_argument("quantized conv: one multiplier per row, or one for all");
  }
  for (const float multiplier : multipliers) {
    if (!std::isfinite(multiplier)) throw std::invalid_argument("quantized conv: a multiplier is not finite");
  }
  return multipliers;
}

// Whether generated code may make bytes of sums: it counts on what becomes of any sum being below 2^31 before it is
// rounded.
bool fit_code(const std::vector<float>& multipliers, float divisor, const QuadAddition& addition) {
  constexpr float kMostFactor = 0x1p20F;
  if (divisor != 1 && !divides_in_code(divisor)) return false;
  const auto is_small = [&](float multiplier) { return std::abs(multiplier) < divisor; };
  return std::all_of(multipliers.begin(), multipliers.end(), is_small) && std::abs(addition.own_factor) < kMostFactor &&
         std::abs(addition.other_factor) < kMostFactor;
}

}  // namespace

QuantizedConv::QuantizedConv(QuadProduct product, std::vector<float> multipliers, float divisor,
                             std::uint8_t input_zero_point, std::uint8_t zero_point, ByteRange range,
                             std::optional<ScaledAddition> addition, std::optional<ChannelAddition> of_channels)
    : product_(std::move(product)),
      multipliers_(spread(std::move(multipliers), product_.rows())),
      divisor_(divisor),
      input_zero_point_(input_zero_point),
      zero_point_(zero_point),
      range_(range),
      addition_(addition) {
  check_scale(divisor);
  factors_ = addition_ ? addition_->factors() : QuadAddition{};
  float most = 0;
  if (of_channels) {
    if (addition_) throw std::invalid_argument("quantized conv: one addition, of bytes or of numbers");
    rests_ = spread(std::move(of_channels->rests), product_.rows());
    factors_.own_factor = of_channels->factor;
    check_scale(factors_.own_factor);
    for (const float rest : rests_) most = std::max(most, std::abs(rest));
  }
  fits_code_ = fit_code(multipliers_, divisor, factors_) && most < 0x1p30F;
}

OtherSizes QuantizedConv::other_sizes(const Shape& in) const {
  if (!addition_) return {};
  return {.second = element_count(output_shape(in), Layout::quads)};
}

void QuantizedConv::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  if (addition_ && others.second == nullptr) throw std::invalid_argument("quantized conv: nothing to add is given");
  const auto* const other = addition_ ? reinterpret_cast<const std::uint8_t*>(others.second) : nullptr;
  auto* const bytes = reinterpret_cast<std::uint8_t*>(out);
  const std::ptrdiff_t step = block_bytes(output_shape(shape));
  const auto zero_point = static_cast<float>(zero_point_);
  const bool adds = addition_ || !rests_.empty();
  const auto requantize = [&](const QuadSums& sums) {
    const std::ptrdiff_t at = sums.block * step + sums.first_row / kQuad * kBlockBytes;
    product_.kernels().requantize({.sums = sums.sums,
                                   .rows = sums.rows,
                                   .multipliers = multipliers_.data() + sums.first_row,
                                   .divisor = divisor_,
                                   .zero_point = zero_point,
                                   .low = static_cast<float>(range_.low),
                                   .high = static_cast<float>(range_.high),
                                   .addition = adds ? &factors_ : nullptr,
                                   .other = other == nullptr ? nullptr : other + at,
                                   .rests = rests_.empty() ? nullptr : rests_.data() + sums.first_row,
                                   .out = bytes + at});
  };
  // The same, for code that does it.
  const QuadOutput quads{.multipliers = multipliers_.data(),
                         .divisor = divisor_,
                         .zero_point = zero_point_,
                         .other = reinterpret_cast<const std::byte*>(other),
                         .rests = rests_.empty() ? nullptr : rests_.data(),
                         .own_factor = factors_.own_factor,
                         .other_factor = factors_.other_factor,
                         .shift = factors_.shift,
                         .low = range_.low,
                         .high = range_.high,
                         .out = reinterpret_cast<std::byte*>(out),
                         .block_bytes = step};
  product_.run(pool, shape, reinterpret_cast<const std::uint8_t*>(in), input_zero_point_, requantize,
               fits_code_ ? &quads : nullptr);
}

DequantizedConv::DequantizedConv(QuadProduct product, std::vector<float> multipliers, std::vector<float> bias,
                                 std::optional<std::uint8_t> input_zero_point, bool adds, float low, float high,
                                 Layout output_layout)
    : product_(std::move(product)),
      multipliers_(spread(std::move(multipliers), product_.rows())),
      bias_(std::move(bias)),
      input_zero_point_(input_zero_point),
      adds_(adds),
      low_(low),
      high_(high),
      output_layout_(output_layout) {
  if (!bias_.empty() && static_cast<std::int64_t>(bias_.size()) != product_.rows()) {
    throw std::invalid_argument("dequantized conv: one bias per row");
  }
}

OtherSizes DequantizedConv::other_sizes(const Shape& in) const {
  if (!adds_) return {};
  return {.second = element_count(output_shape(in), output_layout_)};
}

void DequantizedConv::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others,
                          float* out) const {
  if (adds_ && others.second == nullptr) throw std::invalid_argument("dequantized conv: nothing to add is given");
  DynamicScale found{.scale = 1, .zero_point = input_zero_point_.value_or(0)};
  if (!input_zero_point_) {
    found = read_dynamic_scale(in);
    in += kDynamicWords;
  }
  const Shape out_shape = output_shape(shape);
  if (output_layout_ == Layout::nchw_n16 && out != others.second) clear_idle_lanes(out_shape, out);
  const auto zero_point = static_cast<std::uint8_t>(found.zero_point);
  product_.run(pool, shape, reinterpret_cast<const std::uint8_t*>(in), zero_point, [&](const QuadSums& sums) {
    alignas(64) float values[QuadProduct::kMostRows * kQuadBlock];
    alignas(64) float added[QuadProduct::kMostRows * kQuadBlock];
    PlainPositions positions(out_shape, output_layout_);
    const PlainBlock block = positions.block(sums.block);
    const std::ptrdiff_t first = sums.first_row * block.channel_stride;
    const bool in_place = block.contiguous && block.count == kQuadBlock;
    const float* const other = adds_ ? others.second + first : nullptr;
    if (adds_ && !in_place) {
      for (std::int64_t row = 0; row < sums.rows; ++row) {
        for (std::int64_t lane = 0; lane < kQuadBlock; ++lane) {
          const bool exists = lane < block.count;
          added[row * kQuadBlock + lane] = exists ? other[row * block.channel_stride + block.lanes[lane]] : 0;
        }
      }
    }
    product_.kernels().dequantize({.sums = sums.sums,
                                   .rows = sums.rows,
                                   .multipliers = multipliers_.data() + sums.first_row,
                                   .common = found.scale,
                                   .bias = bias_.empty() ? nullptr : bias_.data() + sums.first_row,
                                   .other = !adds_     ? nullptr
                                            : in_place ? other + block.lanes[0]
                                                       : added,
                                   .low = low_,
                                   .high = high_,
                                   .out = in_place ? out + first + block.lanes[0] : values,
                                   .stride = in_place ? block.channel_stride : kQuadBlock});
    if (in_place) return;
    for (std::int64_t row = 0; row < sums.rows; ++row) {
      const float* const from = values + row * kQuadBlock;
      float* const to = out + first + row * block.channel_stride;
      for (std::int64_t lane = 0; lane < block.count; ++lane) to[block.lanes[lane]] = from[lane];
    }
  });
}

}  // namespace sift::cpu
