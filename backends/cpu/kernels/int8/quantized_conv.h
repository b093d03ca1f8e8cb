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

// multiplier sum + bias, clamped: ConvInteger and MatMulInteger with what scales their result. With a layout `added`, a
// second operand is added before: in the layout of the output, in float_quads, or in nchw where the output is in
// float_quads. Output in float_quads has quads as well if there is a quantization, as QuantizeLinear makes them of the
// floats. Without an input zero point the input is in dynamic_quads, and its scale, which multiplies every multiplier,
// and zero point are there.
class DequantizedConv final : public Op {
 public:
  DequantizedConv(QuadProduct product, std::vector<float> multipliers, std::vector<float> bias,
                  std::optional<std::uint8_t> input_zero_point, std::optional<Layout> added, float low, float high,
                  Layout output_layout, std::optional<Quantization> quantization = std::nullopt);

  Shape output_shape(const Shape& in) const override { return product_.output_shape(in); }
  Layout input_layout() const override { return input_zero_point_ ? Layout::quads : Layout::dynamic_quads; }
  Layout output_layout() const override { return output_layout_; }
  Layout second_layout() const override { return added_.value_or(output_layout_); }
  std::int64_t weight_bytes() const override { return product_.bytes(); }
  OtherSizes other_sizes(const Shape& in) const override;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

  const QuadProduct& product() const { return product_; }

 private:
  // Whether generated code stores floats and bytes.
  bool makes_all_in_code() const;
  // Bytes of the floats of some rows at one block, [rows][16], into the quads of a tensor of this shape.
  void quantize(const QuadSums& sums, const Shape& shape, const float* floats, std::uint8_t* out) const;

  QuadProduct product_;
  std::vector<float> multipliers_;
  std::vector<float> bias_;
  std::optional<std::uint8_t> input_zero_point_;
  std::optional<Layout> added_;
  float low_;
  float high_;
  Layout output_layout_;
  std::optional<Quantization> quantization_;
};

}  // namespace sift::cpu
