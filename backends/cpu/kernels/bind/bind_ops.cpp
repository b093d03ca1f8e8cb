#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/op.h"
#include "base/thread_pool.h"
#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "ops/attention.h"
#include "ops/cached_attention.h"
#include "ops/elementwise.h"
#include "ops/global_pool.h"
#include "ops/normalize.h"
#include "ops/rearrange.h"
#include "ops/reorder.h"
#include "ops/rotate.h"
#include "ops/windows/window_op.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

constexpr Names<BinaryKind, 4> kBinaries{{{"first", BinaryKind::first},
                                          {"add", BinaryKind::add},
                                          {"subtract", BinaryKind::subtract},
                                          {"multiply", BinaryKind::multiply}}};

constexpr Names<DType, 1> kDTypes{{{"float32", DType::float32}}};

using MaybeFloats = std::optional<FloatsIn>;

const float* other_operand(const MaybeFloats& array, std::int64_t size, Layout layout, const char* what) {
  if (!array) return nullptr;
  if (size == OtherSizes::kNotTaken)
    throw std::invalid_argument(std::string(what) + ": the operator takes no such operand");
  check_array(*array, size, layout, what);
  return array->data();
}

void run_op(const Op& op, ThreadPool& pool, const Shape4& sizes, const FloatsIn& in, const FloatsOut& out,
            const MaybeFloats& second, const MaybeFloats& third, const MaybeFloats& mask) {
  const Shape shape = shape_of(sizes);
  check_array(in, element_count(shape, op.input_layout()), op.input_layout(), "in");
  check_array(out, element_count(op.output_shape(shape), op.output_layout()), op.output_layout(), "out");
  const OtherSizes other = op.other_sizes(shape);
  const Others others{other_operand(second, other.second, op.second_layout(), "second"),
                      other_operand(third, other.third, op.output_layout(), "third"),
                      other_operand(mask, other.mask, Layout::nchw, "mask")};
  const Unlocked unlocked;
  op.run(pool, shape, in.data(), others, out.data());
}

void init_cached_attention(CachedAttention* self, std::int64_t sequences, std::int64_t tokens, std::int64_t heads,
                           std::int64_t key_heads, std::int64_t depth, std::int64_t value_depth, float scale,
                           const Pair& queries, const Pair& keys, const Pair& values, bool appends, bool is_causal,
                           std::int64_t window, float softcap, bool nan_to_zero, const std::string& isa) {
  const auto channels = [](const Pair& pair) { return HeadChannels{std::get<0>(pair), std::get<1>(pair)}; };
  const CachedAttentionOptions options{.sequences = sequences,
                                       .tokens = tokens,
                                       .heads = heads,
                                       .key_heads = key_heads,
                                       .depth = depth,
                                       .value_depth = value_depth,
                                       .scale = scale,
                                       .queries = channels(queries),
                                       .keys = channels(keys),
                                       .values = channels(values),
                                       .appends = appends,
                                       .is_causal = is_causal,
                                       .window = window,
                                       .softcap = softcap,
                                       .nan_to_zero = nan_to_zero};
  new (self) CachedAttention(options, kernels_of(isa));
}

// Steps of a unit, scale, lowest and highest integer.
using RoundingSpecs = std::vector<std::tuple<float, float, float, float>>;

std::vector<Rounding> roundings_of(const RoundingSpecs& specs) {
  std::vector<Rounding> roundings;
  for (const auto& [steps, scale, low, high] : specs) roundings.push_back({steps, scale, low, high});
  return roundings;
}

void init_attention(Attention* self, std::int64_t sequences, std::int64_t tokens, std::int64_t heads,
                    std::int64_t depth, std::int64_t value_depth, float scale, const std::vector<float>& head_scales,
                    const Pair& queries, const Pair& keys, const Pair& values, std::optional<std::int64_t> key_tokens,
                    const std::optional<Shape4>& mask, bool nan_to_zero, const RoundingSpecs& score_roundings,
                    const RoundingSpecs& masked_roundings, const RoundingSpecs& weight_roundings,
                    const std::string& layout, const std::string& isa) {
  const auto channels_of = [](const Pair& pair) { return HeadChannels{std::get<0>(pair), std::get<1>(pair)}; };
  AttentionOptions options{.sequences = sequences,
                           .tokens = tokens,
                           .key_tokens = key_tokens.value_or(tokens),
                           .heads = heads,
                           .depth = depth,
                           .value_depth = value_depth,
                           .scale = scale,
                           .head_scales = head_scales,
                           .queries = channels_of(queries),
                           .keys = channels_of(keys),
                           .values = channels_of(values),
                           .mask = std::nullopt,
                           .nan_to_zero = nan_to_zero,
                           .score_roundings = roundings_of(score_roundings),
                           .masked_roundings = roundings_of(masked_roundings),
                           .weight_roundings = roundings_of(weight_roundings),
                           .layout = named(kLayouts, layout, "layout")};
  if (mask) {
    const auto& [of_sequences, of_heads, of_queries, of_keys] = *mask;
    options.mask = MaskShape{of_sequences, of_heads, of_queries, of_keys};
  }
  new (self) Attention(options, kernels_of(isa));
}

void init_rearrange(Rearrange* self, const IndicesIn& positions, const IndicesIn& channels, const Shape4& source,
                    const Shape4& target, std::int64_t first_channel, const std::string& source_layout,
                    const std::string& target_layout, const std::string& isa) {
  const RearrangeMap map{.positions = {positions.data(), positions.data() + positions.size()},
                         .channels = {channels.data(), channels.data() + channels.size()},
                         .first_channel = first_channel};
  new (self) Rearrange(map, shape_of(source), named(kLayouts, source_layout, "layout"), shape_of(target),
                       named(kLayouts, target_layout, "layout"), kernels_of(isa));
}

}  // namespace

void bind_ops(nb::module_& module) {
  nb::class_<Op>(module, "Op", "An operator on float32 tensors in the layout 'planes' or 'images16'.")
      .def("run", &run_op, "pool"_a, "shape"_a, "input"_a, nb::arg("out").noconvert(), "second"_a = nb::none(),
           "third"_a = nb::none(), "mask"_a = nb::none(),
           "Write the operator's result for an input of shape (n, c, h, w) to `out`.")
      .def(
          "output_shape", [](const Op& op, const Shape4& shape) { return tuple_of(op.output_shape(shape_of(shape))); },
          "shape"_a, "Shape of the output for an input of shape (n, c, h, w).")
      .def_prop_ro("weight_bytes", &Op::weight_bytes, nb::call_guard<Unlocked>(),
                   "Bytes of packed weights and biases; the SparseWeights, which operators share, are not among them.")
      .def_prop_ro(
          "dtype", [](const Op& op) { return name_of(kDTypes, op.dtype()); },
          "Type of the elements of input, output and other operands.")
      .def_prop_ro(
          "input_layout", [](const Op& op) { return name_of(kLayoutNames, op.input_layout()); }, "Layout of the input.")
      .def_prop_ro(
          "output_layout", [](const Op& op) { return name_of(kLayoutNames, op.output_layout()); },
          "Layout of the output.")
      .def_prop_ro(
          "second_layout", [](const Op& op) { return name_of(kLayoutNames, op.second_layout()); },
          "Layout of a second operand.");

  nb::class_<Depthwise, Op>(module, "Depthwise", "activation(depthwise convolution + bias).")
      .def(
          "__init__",
          [](Depthwise* self, std::shared_ptr<const SparseWeights> weights, const std::optional<FloatsIn>& bias,
             const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads,
             const ActivationSpec& activation, const std::string& layout, const std::string& isa) {
            new (self) Depthwise(std::move(weights), vector_of(bias), geometry_of(kernel, stride, dilation, pads),
                                 activation_of(activation), named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          "weights"_a, "bias"_a = nb::none(), nb::kw_only(), "kernel"_a, "stride"_a = Pair{1, 1},
          "dilation"_a = Pair{1, 1}, "pads"_a = Shape4{0, 0, 0, 0}, "activation"_a = kNoActivation,
          "layout"_a = "images16", "isa"_a = "", "A row of the weights is [kh][kw] of a channel.");

  nb::class_<MaxPool, Op>(module, "MaxPool", "The maximum of a sliding window.")
      .def(
          "__init__",
          [](MaxPool* self, const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads,
             bool ceil_mode, const std::string& layout, const std::string& isa) {
            new (self) MaxPool(geometry_of(kernel, stride, dilation, pads), ceil_mode,
                               named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          nb::kw_only(), "kernel"_a, "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1}, "pads"_a = Shape4{0, 0, 0, 0},
          "ceil_mode"_a = false, "layout"_a = "images16", "isa"_a = "", "Attributes as ONNX has them.");

  nb::class_<AveragePool, Op>(module, "AveragePool", "The mean of a sliding window.")
      .def(
          "__init__",
          [](AveragePool* self, const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads,
             bool ceil_mode, bool count_include_pad, const std::string& layout, const std::string& isa) {
            new (self) AveragePool(geometry_of(kernel, stride, dilation, pads), ceil_mode, count_include_pad,
                                   named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          nb::kw_only(), "kernel"_a, "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1}, "pads"_a = Shape4{0, 0, 0, 0},
          "ceil_mode"_a = false, "count_include_pad"_a = false, "layout"_a = "images16", "isa"_a = "",
          "Attributes as ONNX has them.");

  nb::class_<GlobalAveragePool, Op>(module, "GlobalAveragePool", "The mean, or the sum, over all pixels of a channel.")
      .def(
          "__init__",
          [](GlobalAveragePool* self, bool sums, const std::string& layout, const std::string& isa) {
            new (self) GlobalAveragePool(named(kLayouts, layout, "layout"), kernels_of(isa), sums);
          },
          nb::kw_only(), "sums"_a = false, "layout"_a = "images16", "isa"_a = "", "The output has the input's layout.");

  nb::class_<Elementwise, Op>(module, "Elementwise", "activation(input op second), or activation(input) for 'first'.")
      .def(
          "__init__",
          [](Elementwise* self, const std::string& kind, const ActivationSpec& activation, const std::string& layout,
             const std::string& isa) {
            new (self) Elementwise(named(kBinaries, kind, "operation"), activation_of(activation),
                                   named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          "kind"_a, nb::kw_only(), "activation"_a = kNoActivation, "layout"_a = "images16", "isa"_a = "",
          "`kind` is 'first', 'add', 'subtract' or 'multiply'.");

  nb::class_<ChannelCombine, Op>(module, "ChannelCombine", "activation(input op second), a second value per channel.")
      .def(
          "__init__",
          [](ChannelCombine* self, const std::string& kind, const ActivationSpec& activation, const std::string& layout,
             const std::string& isa) {
            new (self) ChannelCombine(named(kBinaries, kind, "operation"), activation_of(activation),
                                      named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          "kind"_a, nb::kw_only(), "activation"_a = kNoActivation, "layout"_a = "images16", "isa"_a = "",
          "`kind` is 'add', 'subtract' or 'multiply'; the second operand has the shape (n, c, 1, 1).");

  nb::class_<ChannelScale, Op>(module, "ChannelScale", "activation(input * scale[c] + shift[c]).")
      .def(
          "__init__",
          [](ChannelScale* self, const FloatsIn& scale, const FloatsIn& shift, const std::optional<FloatsIn>& slopes,
             const ActivationSpec& activation, const std::string& layout, const std::string& isa) {
            new (self) ChannelScale(vector_of(scale), vector_of(shift), vector_of(slopes), activation_of(activation),
                                    named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          "scale"_a, "shift"_a, nb::kw_only(), "slopes"_a = nb::none(), "activation"_a = kNoActivation,
          "layout"_a = "images16", "isa"_a = "",
          "One scale and one shift per channel, and one slope of 'leaky' where there are any.");

  nb::class_<LayerNormalization, Op>(module, "LayerNormalization",
                                     "Rows without their mean, at a variance of one; or at a mean square of one.")
      .def(
          "__init__",
          [](LayerNormalization* self, const FloatsIn& scale, const FloatsIn& shift, float epsilon, float least,
             bool is_centered, const std::string& layout, const std::string& isa) {
            new (self) LayerNormalization(vector_of(scale), vector_of(shift), epsilon, is_centered,
                                          named(kLayouts, layout, "layout"), kernels_of(isa), least);
          },
          "scale"_a, "shift"_a, "epsilon"_a, nb::kw_only(), "least"_a = 0.0F, "is_centered"_a = true,
          "layout"_a = "images16", "isa"_a = "",
          "One scale and one shift per channel; for inputs of shape (m, channels, 1, 1). RMS normalization if not "
          "centered. The variance counts as no less than `least`.");

  nb::class_<GroupNormalization, Op>(module, "GroupNormalization",
                                     "Groups of channels of an image without their mean, at a variance of one.")
      .def(
          "__init__",
          [](GroupNormalization* self, const FloatsIn& scale, const FloatsIn& shift, std::int64_t groups, float epsilon,
             const std::string& layout, const std::string& isa) {
            new (self) GroupNormalization(vector_of(scale), vector_of(shift), groups, epsilon,
                                          named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          "scale"_a, "shift"_a, "groups"_a, "epsilon"_a, nb::kw_only(), "layout"_a = "images16", "isa"_a = "",
          "One scale and one shift per channel.");

  nb::class_<Attention, Op>(module, "Attention", "softmax(queries keys^T scale + mask) values, head by head.")
      .def(
          "__init__", &init_attention, nb::kw_only(), "sequences"_a, "tokens"_a, "heads"_a, "depth"_a, "value_depth"_a,
          "scale"_a, "head_scales"_a = std::vector<float>{}, "queries"_a, "keys"_a, "values"_a,
          "key_tokens"_a = nb::none(), "mask"_a = nb::none(), "nan_to_zero"_a = false,
          "score_roundings"_a = RoundingSpecs{}, "masked_roundings"_a = RoundingSpecs{},
          "weight_roundings"_a = RoundingSpecs{}, "layout"_a = "images16", "isa"_a = "",
          "Input, second and third operand are queries, keys and values of shape (sequences * tokens, channels, 1, 1), "
          "each with (channels, first channel of the first head); keys and values have (sequences * key_tokens) rows "
          "where these are other tokens. Scores are multiplied by `scale`, and by one of `head_scales` where there are "
          "any. The mask, of the sizes given, is added to the scores of (sequences, heads, queries, keys); any of its "
          "sizes but that of the keys may be 1. Scores are rounded by (steps of a unit, scale, lowest and highest "
          "integer) before the mask, before the softmax and behind it, as a quantized model rounds them.");

  nb::class_<CachedAttention, Op>(module, "CachedAttention", "Attention to a cache that new tokens are appended to.")
      .def(
          "__init__", &init_cached_attention, nb::kw_only(), "sequences"_a, "tokens"_a, "heads"_a, "key_heads"_a,
          "depth"_a, "value_depth"_a, "scale"_a, "queries"_a, "keys"_a, "values"_a, "appends"_a = true,
          "is_causal"_a = false, "window"_a = 0, "softcap"_a = 0.0F, "nan_to_zero"_a = false, "isa"_a = "",
          "As Attention, of new tokens in planes; how many tokens the cache has, and the mask, come with each run of a "
          "Sequence. Unless it `appends`, the cache is only read, and there are no operands besides queries. A token "
          "attends to `window` tokens at most, if there is one; where scores are capped, a score s is "
          "softcap tanh(s / softcap).");

  nb::class_<Rotate, Op>(module, "Rotate", "Pairs of channels of each head, turned by an angle of the token.")
      .def(
          "__init__",
          [](Rotate* self, std::int64_t heads, std::int64_t depth, std::int64_t rotated, bool is_interleaved,
             bool has_angle_each, const std::string& layout) {
            const Layout lies = named(kLayouts, layout, "layout");
            new (self) Rotate({heads, depth, rotated, is_interleaved, has_angle_each, lies});
          },
          nb::kw_only(), "heads"_a, "depth"_a, "rotated"_a, "is_interleaved"_a = false, "has_angle_each"_a = false,
          "layout"_a = "images16",
          "Second and third operand are cosines and sines, one for each pair of a token, or one for each channel.");

  nb::class_<Reorder, Op>(module, "Reorder", "From one layout into the other.")
      .def(
          "__init__",
          [](Reorder* self, const std::string& from, const std::string& isa) {
            new (self) Reorder(named(kLayouts, from, "layout"), kernels_of(isa));
          },
          "source"_a, nb::kw_only(), "isa"_a = "", "`source` is the layout of the input.");

  nb::class_<Rearrange, Op>(module, "Rearrange", "The same values in other places, from either layout to either.")
      .def(
          "__init__", &init_rearrange, "positions"_a, "channels"_a, nb::kw_only(), "source"_a, "target"_a,
          "first_channel"_a = 0, "source_layout"_a = "images16", "target_layout"_a = "images16", "isa"_a = "",
          "For tensors of shape `source` and `target`, each (n, c, h, w). What is written to position p, of n h w, and "
          "channel first_channel + c of the result is at positions[p] + channels[c], in floats of the input as it "
          "lies in memory; where positions[p] is -1, the result is left as it is.");
}

}  // namespace sift::cpu
