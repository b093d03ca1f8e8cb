// Sparse int8, as Python sees it. These operators are Ops, and go into a Sequence beside those of floats.
//
// Layouts. Activations are u8 in `quads`, [ceil(n h w / 16)][ceil(c / 4)][16][4] bytes: 16 positions, of all images one
// after the other, side by side, each with four adjacent channels. Of a matrix (m, c, 1, 1) positions are rows. Lanes
// past the last position, and bytes past the last channel, hold any value. A tensor in quads is counted in words of
// four bytes, as large as a float: so are its place in a Sequence and sizes of arrays and scratch memory, and it is
// aligned to 64 bytes (16 words). `dynamic_quads` has 16 words in front, which hold the scale and zero point that
// DynamicQuantize has found. `float_quads` is quads, and behind them [ceil(n h w / 16)][4 ceil(c / 4)][16] floats, of
// which they may be the bytes: what reads quads takes it. `bytes` is a plain u8 or s8 tensor [n][c][h][w], of ceil(n c
// h w / 4) words; a Sequence takes arrays of uint8, int8 or float32 for it. s8 is u8 minus 128 in value: zero points of
// s8 tensors are passed plus 128.
//
// Numbers. A byte stands for scale * (byte - zero_point). Sums are of 32 bits and exact, or wrap as onnxruntime's do.
// Rounding is half to even, step by step as onnxruntime rounds, and the same in every instruction set and for any
// number of threads.
//
//   QuadWeights(values int8 or int16 [rows, channels / groups, kh, kw] or [rows, channels], groups=1)
//   QuantizedConv(weights, bias int32 | None, multipliers, ...)    quads -> quads          QLinearConv (+ QLinearAdd)
//   DequantizedConv(weights, bias int32 | None, multipliers, ...)  quads or dynamic_quads -> floats or float_quads
//                                                                  ConvInteger, Mul, Add (+ Add, QuantizeLinear)
//   Quantize, Dequantize, DynamicQuantize                          floats <-> quads
//   ReorderBytes                                                   bytes <-> quads
//   QuadAdd, QuadTable, QuadChannels                               quads -> quads
//   QuadMaxPool, QuadAveragePool, QuadGlobalAverage                quads -> quads
//
// `isa` is one of int8_isas(), a name of supported_isas(), which stands for the best of it, or "", the best of all.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "bind/int8_types.h"
#include "int8/quad_product.h"
#include "int8/quad_weights.h"
#include "int8/quantized_conv.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

template <typename Value>
using IntegersIn = nb::ndarray<const Value, nb::c_contig, nb::device::cpu>;
using SumsIn = ReadArray<nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

constexpr Names<QuadAlgorithm, 4> kQuadAlgorithms{{{"auto", QuadAlgorithm::fastest},
                                                   {"lists", QuadAlgorithm::lists},
                                                   {"generated", QuadAlgorithm::code},
                                                   {"generated in fours", QuadAlgorithm::code_in_fours}}};

template <typename Value>
QuadWeights* make_weights(const IntegersIn<Value>& values, std::int64_t groups) {
  if (values.ndim() != 2 && values.ndim() != 4) {
    throw std::invalid_argument("quad weights: [rows, channels / groups, kh, kw] or [rows, channels]");
  }
  const auto size = [&](std::size_t axis) {
    return axis < values.ndim() ? static_cast<std::int64_t>(values.shape(axis)) : 1;
  };
  if (groups < 1 || groups > size(0))
    throw std::invalid_argument("quad weights: groups do not divide rows and channels");
  const Unlocked unlocked;
  return new QuadWeights(size(0), size(1) * groups, size(2), size(3), groups,
                         std::span<const Value>(values.data(), values.size()));
}

QuadProduct product_of(const QuadWeights& weights, const std::optional<SumsIn>& bias, const Pair& stride,
                       const Pair& dilation, const Shape4& pads, const std::string& algorithm, const std::string& isa) {
  const ConvGeometry geometry = geometry_of({weights.kernel_h(), weights.kernel_w()}, stride, dilation, pads);
  std::vector<std::int32_t> own;
  if (bias) own.assign(bias->data(), bias->data() + bias->size());
  return QuadProduct(weights, std::move(own), geometry, named(kQuadAlgorithms, algorithm, "algorithm"),
                     int8_kernels_of(isa));
}

using ChannelAdditionSpec = std::tuple<float, FloatsIn>;

void init_quantized(QuantizedConv* self, const QuadWeights& weights, const std::optional<SumsIn>& bias,
                    const FloatsIn& multipliers, int input_zero_point, int zero_point, float divisor,
                    const RangeSpec& range, const std::optional<AdditionSpec>& addition,
                    const std::optional<ChannelAdditionSpec>& channel_addition, const Pair& stride,
                    const Pair& dilation, const Shape4& pads, const std::string& algorithm, const std::string& isa) {
  const std::uint8_t in_zero = byte_of(input_zero_point);
  const std::uint8_t zero = byte_of(zero_point);
  std::optional<ScaledAddition> added;
  if (addition) added = addition_of(*addition);
  std::optional<ChannelAddition> of_channels;
  if (channel_addition) {
    const auto& [factor, rests] = *channel_addition;
    of_channels = ChannelAddition{.factor = factor, .rests = {rests.data(), rests.data() + rests.size()}};
  }
  const Unlocked unlocked;
  new (self) QuantizedConv(product_of(weights, bias, stride, dilation, pads, algorithm, isa), vector_of(multipliers),
                           divisor, in_zero, zero, range_of(range), added, std::move(of_channels));
}

void init_dequantized(DequantizedConv* self, const QuadWeights& weights, const std::optional<SumsIn>& bias,
                      const FloatsIn& multipliers, const std::optional<FloatsIn>& float_bias,
                      const std::optional<int>& input_zero_point, const std::optional<std::string>& added, float low,
                      float high, const std::optional<QuantizationSpec>& quantization, const Pair& stride,
                      const Pair& dilation, const Shape4& pads, const std::string& layout, const std::string& algorithm,
                      const std::string& isa) {
  std::optional<std::uint8_t> zero;
  if (input_zero_point) zero = byte_of(*input_zero_point);
  std::optional<Layout> added_layout;
  if (added) added_layout = named(kFloatLayouts, *added, "layout");
  std::optional<Quantization> bytes;
  if (quantization) bytes = quantization_of(*quantization);
  const Unlocked unlocked;
  new (self) DequantizedConv(product_of(weights, bias, stride, dilation, pads, algorithm, isa), vector_of(multipliers),
                             vector_of(float_bias), zero, added_layout, low, high,
                             named(kFloatLayouts, layout, "layout"), bytes);
}

constexpr const char* kValues =
    "Values are int8 or int16, minus their zero point: [rows, channels / groups, kh, kw] or [rows, channels]. What is "
    "more than int8 takes more quads.";
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void bind_convolutions(nb::module_& module) {
  nb::class_<QuadWeights> weights(module, "QuadWeights",
                                  "Weights of eight bits, of which quads that are all zero are left out.");
  weights.def(nb::new_(&make_weights<std::int8_t>), "values"_a, nb::kw_only(), "groups"_a = 1, kValues)
      .def(nb::new_(&make_weights<std::int16_t>), "values"_a, nb::kw_only(), "groups"_a = 1, kValues)
      .def_prop_ro("rows", &QuadWeights::rows, "Output channels.")
      .def_prop_ro("channels", &QuadWeights::channels, "Input channels, of all groups.")
      .def_prop_ro("live_quads", &QuadWeights::live_quads, "Quads that are not all zero.")
      .def_prop_ro("quads", &QuadWeights::all_quads, "Quads of dense weights.")
      .def_prop_ro("nbytes", &QuadWeights::bytes, "Bytes of memory, 8 per live quad.");
  bind_stored_quads(weights);

  nb::class_<QuantizedConv, Op>(module, "QuantizedConv", "QLinearConv, QLinearMatMul and QGemm, on quads.")
      .def(
          "__init__", &init_quantized, "weights"_a, "bias"_a, "multipliers"_a, nb::kw_only(), "input_zero_point"_a,
          "zero_point"_a, "divisor"_a = 1.0F, "range"_a = RangeSpec{0, 255}, "addition"_a = nb::none(),
          "channel_addition"_a = nb::none(), "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1},
          "pads"_a = Shape4{0, 0, 0, 0}, "algorithm"_a = "auto", "isa"_a = "",
          "The bias is int32 per row, or None. Multipliers are float32 input scale * weight scale / output scale, one "
          "per row or one, without the output scale where that is the divisor: products and quotients are rounded "
          "then, as "
          "QuantizeLinear does with floats. Pads are (top, left, bottom, right), of the input's zero point. Results "
          "are clamped to the "
          "range, (low, high). An addition ((scale, zero point) of this result, of the second operand, of the sum) "
          "adds "
          "the second operand as QLinearAdd does; the range is then the sum's, and zero_point must be this result's. A "
          "channel_addition (factor, float32 per row) makes bytes of byte * factor + number, in the range. "
          "Algorithms: 'auto', 'generated' code, which may load weights 'generated in fours', 'lists'.")
      .def_prop_ro(
          "algorithm", [](const QuantizedConv& conv) { return conv.product().is_generated() ? "generated" : "lists"; },
          "How rows are multiplied.");

  nb::class_<DequantizedConv, Op>(module, "DequantizedConv",
                                  "ConvInteger or MatMulInteger, and what makes floats of it.")
      .def(
          "__init__", &init_dequantized, "weights"_a, "bias"_a, "multipliers"_a, "float_bias"_a = nb::none(),
          nb::kw_only(), "input_zero_point"_a, "added"_a = nb::none(), "low"_a = -kInfinity, "high"_a = kInfinity,
          "quantization"_a = nb::none(), "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1},
          "pads"_a = Shape4{0, 0, 0, 0}, "layout"_a = "planes", "algorithm"_a = "auto", "isa"_a = "",
          "clamp((sum + bias) * multiplier + float_bias, low, high), in the layout of floats that is given, or in "
          "float_quads. A second operand is added before, if `added` is its layout: that of the result, float_quads, "
          "or "
          "planes for a result in float_quads. There, a quantization (scale, zero point) makes bytes of the floats, as "
          "QuantizeLinear does. With an input_zero_point of None the input is in dynamic_quads: its scale multiplies "
          "the multipliers.")
      .def_prop_ro(
          "algorithm",
          [](const DequantizedConv& conv) { return conv.product().is_generated() ? "generated" : "lists"; },
          "How rows are multiplied.");
}

}  // namespace

void bind_int8(nb::module_& module) {
  module.def("int8_isas", &int8_isas, "Kernels of int8 that this machine runs, best first.");
  bind_convolutions(module);
  bind_quads(module);
}

}  // namespace sift::cpu
