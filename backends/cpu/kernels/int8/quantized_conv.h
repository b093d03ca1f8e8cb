// Convolutions and matrix products of quads, sparse or dense, whose results are quads again or floats.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/op.h"
#include "int8/quad_addition.h"
#include "int8/quad_product.h"

namespace sift::cpu {

// Results outside of these bytes are clamped: what Relu and Clip are folded into.
struct ByteRange {
  std::uint8_t low = 0;
  std::uint8_t high = 255;
};

// clamp(round(multiplier sum / divisor) + zero_point); with a divisor of 1 as onnxruntime's QLinearConv, with another
// one as QuantizeLinear after floats that ConvInteger and Mul make. With an addition, the second operand is added as by
// QLinearAdd, or a number of each channel, and the range is that of the result.
class QuantizedConv final : public Op {
 public:
  // multipliers: input scale * weight scale / output scale, of each row or one for all; without the last where that is
  // the divisor.
  QuantizedConv(QuadProduct product, std::vector<float> multipliers, float divisor, std::uint8_t input_zero_point,
                std::uint8_t zero_point, ByteRange range, std::optional<ScaledAddition> addition,
                std::optional<ChannelAddition> of_channels = std::nullopt);

  Shape output_shape(const Shape& in) const override { return product_.output_shape(in); }
  Layout input_layout() const override { return Layout::quads; }
  std::int64_t weight_bytes() const override { return product_.bytes(); }
  OtherSizes other_sizes(const Shape& in) const override;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

  const QuadProduct& product() const { return product_; }

 private:
  QuadProduct product_;
  std::vector<float> multipliers_;
  float divisor_;
  std::uint8_t input_zero_point_;
  std::uint8_t zero_point_;
  ByteRange range_;
  std::optional<ScaledAddition> addition_;
  std::vector<float> rests_;  // empty: none
  QuadAddition factors_;
  bool fits_code_;
};

// multiplier sum + bias, clamped: ConvInteger and MatMulInteger with what scales their result; with `adds`, a second
// operand is added before. Without an input zero point the input is in dynamic_quads, and its scale, which multiplies
// every multiplier, and zero point are there.
class DequantizedConv final : public Op {
 public:
  DequantizedConv(QuadProduct product, std::vector<float> multipliers, std::vector<float> bias,
                  std::optional<std::uint8_t> input_zero_point, bool adds, float low, float high, Layout output_layout);

  Shape output_shape(const Shape& in) const override { return product_.output_shape(in); }
  Layout input_layout() const override { return input_zero_point_ ? Layout::quads : Layout::dynamic_quads; }
  Layout output_layout() const override { return output_layout_; }
  std::int64_t weight_bytes() const override { return product_.bytes(); }
  OtherSizes other_sizes(const Shape& in) const override;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

  const QuadProduct& product() const { return product_; }

 private:
  QuadProduct product_;
  std::vector<float> multipliers_;
  std::vector<float> bias_;
  std::optional<std::uint8_t> input_zero_point_;
  bool adds_;
  float low_;
  float high_;
  Layout output_layout_;
};

}  // namespace sift::cpu
