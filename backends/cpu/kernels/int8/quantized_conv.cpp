#include "int8/quantized_conv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "int8/conversions.h"
#include "int8/exact_quotients.h"
#include "int8/float_rows.h"
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
                                 std::optional<std::uint8_t> input_zero_point, std::optional<Layout> added, float low,
                                 float high, Layout output_layout, std::optional<Quantization> quantization)
    : product_(std::move(product)),
      multipliers_(spread(std::move(multipliers), product_.rows())),
      bias_(std::move(bias)),
      input_zero_point_(input_zero_point),
      added_(added),
      low_(low),
      high_(high),
      output_layout_(output_layout),
      quantization_(quantization) {
  if (!bias_.empty() && static_cast<std::int64_t>(bias_.size()) != product_.rows()) {
    throw std::invalid_argument("dequantized conv: one bias per row");
  }
  const bool in_quads = output_layout == Layout::float_quads;
  if (added && *added != output_layout && *added != Layout::float_quads && !(in_quads && *added == Layout::nchw)) {
    throw std::invalid_argument("dequantized conv: what is added is in the layout of the output or in float_quads");
  }
  if (quantization) {
    if (!in_quads) throw std::invalid_argument("dequantized conv: bytes lie beside floats in float_quads");
    check_scale(quantization->scale);
  }
}

OtherSizes DequantizedConv::other_sizes(const Shape& in) const {
  if (!added_) return {};
  return {.second = element_count(output_shape(in), second_layout())};
}

void DequantizedConv::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others,
                          float* out) const {
  if (added_ && others.second == nullptr) throw std::invalid_argument("dequantized conv: nothing to add is given");
  DynamicScale found{.scale = 1, .zero_point = input_zero_point_.value_or(0)};
  if (!input_zero_point_) {
    found = read_dynamic_scale(in);
    in += kDynamicWords;
  }
  const Shape out_shape = output_shape(shape);
  // Of rows, all lanes are written.
  const bool leaves_lanes = output_layout_ == Layout::nchw_n16 && out_shape.h * out_shape.w != 1;
  if (leaves_lanes && out != others.second) clear_idle_lanes(out_shape, out);
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(in);
  const auto zero_point = static_cast<std::uint8_t>(found.zero_point);
  const FloatRows results(out_shape, output_layout_, out);
  const FloatRows added(out_shape, second_layout(), others.second);
  const auto store = [&](const QuadSums& sums) {
    alignas(64) float values[QuadProduct::kMostRows * kQuadBlock];
    alignas(64) float copied[QuadProduct::kMostRows * kQuadBlock];
    FloatRows::Block to = results.block(sums);
    FloatRows::Block other{};
    if (added_) {
      other = added.block(sums);
      if (!other.whole) other = other.copied(sums.rows, copied);
    }
    float* const target = to.whole ? to.first : values;
    const std::ptrdiff_t stride = to.whole ? to.stride : kQuadBlock;
    product_.kernels().dequantize({.sums = sums.sums,
                                   .rows = sums.rows,
                                   .multipliers = multipliers_.data() + sums.first_row,
                                   .common = found.scale,
                                   .bias = bias_.empty() ? nullptr : bias_.data() + sums.first_row,
                                   .other = other.first,
                                   .other_stride = other.stride,
                                   .low = low_,
                                   .high = high_,
                                   .out = target,
                                   .stride = stride});
    if (!to.whole) to.fill(sums.rows, values);
    if (quantization_) quantize(sums, out_shape, target, reinterpret_cast<std::uint8_t*>(out));
  };
  if (!makes_all_in_code()) return product_.run(pool, shape, bytes, zero_point, store);
  auto* const quads_of = reinterpret_cast<std::byte*>(out);
  const QuadOutput quads{
      .multipliers = multipliers_.data(),
      .divisor = quantization_ ? quantization_->scale : 1,
      .zero_point = quantization_ ? quantization_->zero_point : 0,
      .other = nullptr,
      .rests = nullptr,
      .own_factor = 0,
      .other_factor = 0,
      .shift = 0,
      .low = 0,
      .high = 255,
      .out = quads_of,
      .block_bytes = block_bytes(out_shape),
      .floats = {
          .out = reinterpret_cast<std::byte*>(floats_beside(out_shape, out)),
          .residual = added_ ? reinterpret_cast<const std::byte*>(floats_beside(out_shape, others.second)) : nullptr,
          .low = low_,
          .high = high_,
          .makes_bytes = quantization_.has_value()}};
  product_.run(pool, shape, bytes, zero_point, store, &quads);
}

bool DequantizedConv::makes_all_in_code() const {
  if (output_layout_ != Layout::float_quads || (added_ && *added_ != Layout::float_quads)) return false;
  return input_zero_point_ && bias_.empty() && (!quantization_ || divides_in_code(quantization_->scale));
}

void DequantizedConv::quantize(const QuadSums& sums, const Shape& shape, const float* floats, std::uint8_t* out) const {
  constexpr std::int64_t kPlaces[kQuadBlock] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  product_.kernels().quantize({.in = floats,
                               .first = {.lanes = kPlaces,
                                         .count = kQuadBlock,
                                         .contiguous = true,
                                         .channel_stride = kQuadBlock,
                                         .channels = sums.rows},
                               .blocks = 1,
                               .scale = quantization_->scale,
                               .zero_point = static_cast<float>(quantization_->zero_point),
                               .out = out + sums.block * block_bytes(shape) + sums.first_row / kQuad * kBlockBytes,
                               .out_step = 0});
}

}  // namespace sift::cpu
