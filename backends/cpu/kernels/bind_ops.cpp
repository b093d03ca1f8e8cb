#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "binding_types.h"
#include "bindings.h"
#include "elementwise.h"
#include "global_pool.h"
#include "normalize.h"
#include "op.h"
#include "reorder.h"
#include "thread_pool.h"
#include "window_op.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

constexpr Names<BinaryKind, 4> kBinaries{{{"first", BinaryKind::first},
                                                                      {"add", BinaryKind::add},
                                                                      {"subtract", BinaryKind::subtract},
                                                                      {"multiply", BinaryKind::multiply}}};

Shape4 tuple_of(const Shape& shape) { return {shape.n, shape.c, shape.h, shape.w}; }

template <typename Array>
void check_array(const Array& array, const Shape& shape, Layout layout, const char* what) {
  if (static_cast<std::int64_t>(array.size()) != element_count(shape, layout)) {
    throw std::invalid_argument(std::string(what) + ": the array has " + std::to_string(array.size()) +
                                " values, the shape " + std::to_string(element_count(shape, layout)));
  }
  if (layout == Layout::images16 && reinterpret_cast<std::uintptr_t>(array.data()) % 64 != 0) {
    throw std::invalid_argument(std::string(what) + ": an array in images16 must be aligned to 64 bytes");
  }
}

void run_op(const Op& op, ThreadPool& pool, const Shape4& sizes, const FloatsIn& in, const FloatsOut& out,
            const std::optional<FloatsIn>& second) {
  const Shape shape = shape_of(sizes);
  const Shape out_shape = op.output_shape(shape);
  check_array(in, shape, op.input_layout(), "in");
  check_array(out, out_shape, op.output_layout(), "out");
  if (second) check_array(*second, out_shape, op.output_layout(), "second");
  const nb::gil_scoped_release unlocked;
  op.run(pool, shape, in.data(), second ? second->data() : nullptr, out.data());
}

}  // namespace

void bind_ops(nb::module_& module) {
  nb::class_<Op>(module, "Op", "An operator on float32 tensors in the layout 'planes' or 'images16'.")
      .def("run", &run_op, "pool"_a, "shape"_a, "input"_a, "out"_a, "second"_a = nb::none(),
           "Write the operator's result for an input of shape (n, c, h, w) to `out`.")
      .def(
          "output_shape", [](const Op& op, const Shape4& shape) { return tuple_of(op.output_shape(shape_of(shape))); },
          "shape"_a, "Shape of the output for an input of shape (n, c, h, w).")
      .def_prop_ro("weight_bytes", &Op::weight_bytes,
                   "Bytes of packed weights and biases; the SparseWeights, which operators share, are not among them.")
      .def_prop_ro(
          "input_layout", [](const Op& op) { return name_of(kLayouts, op.input_layout()); }, "Layout of the input.")
      .def_prop_ro(
          "output_layout", [](const Op& op) { return name_of(kLayouts, op.output_layout()); },
          "Layout of the output.");

  nb::class_<Depthwise, Op>(module, "Depthwise", "activation(depthwise convolution + bias).")
      .def(
          "__init__",
          [](Depthwise* self, const FloatsIn& weights, const std::optional<FloatsIn>& bias, const Pair& kernel,
             const Pair& stride, const Pair& dilation, const Shape4& pads, const ActivationSpec& activation,
             const std::string& layout, const std::string& isa) {
            new (self) Depthwise(vector_of(weights), vector_of(bias), geometry_of(kernel, stride, dilation, pads),
                                 activation_of(activation), named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          "weights"_a, "bias"_a = nb::none(), nb::kw_only(), "kernel"_a, "stride"_a = Pair{1, 1},
          "dilation"_a = Pair{1, 1}, "pads"_a = Shape4{0, 0, 0, 0}, "activation"_a = kNoActivation,
          "layout"_a = "images16", "isa"_a = "", "Weights are [c][kh][kw].");

  nb::class_<MaxPool, Op>(module, "MaxPool", "The maximum of a sliding window.")
      .def(
          "__init__",
          [](MaxPool* self, const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads,
             bool ceil_mode, const std::string& layout, const std::string& isa) {
            new (self) MaxPool(geometry_of(kernel, stride, dilation, pads), ceil_mode,
                               named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          nb::kw_only(), "kernel"_a, "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1},
          "pads"_a = Shape4{0, 0, 0, 0}, "ceil_mode"_a = false, "layout"_a = "images16", "isa"_a = "",
          "Attributes as ONNX has them.");

  nb::class_<AveragePool, Op>(module, "AveragePool", "The mean of a sliding window.")
      .def(
          "__init__",
          [](AveragePool* self, const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads,
             bool ceil_mode, bool count_include_pad, const std::string& layout, const std::string& isa) {
            new (self) AveragePool(geometry_of(kernel, stride, dilation, pads), ceil_mode, count_include_pad,
                                   named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          nb::kw_only(), "kernel"_a, "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1},
          "pads"_a = Shape4{0, 0, 0, 0}, "ceil_mode"_a = false, "count_include_pad"_a = false,
          "layout"_a = "images16", "isa"_a = "", "Attributes as ONNX has them.");

  nb::class_<GlobalAveragePool, Op>(module, "GlobalAveragePool", "The mean over all pixels of a channel.")
      .def(
          "__init__",
          [](GlobalAveragePool* self, const std::string& layout, const std::string& isa) {
            new (self) GlobalAveragePool(named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          nb::kw_only(), "layout"_a = "images16", "isa"_a = "", "The output has the input's layout.");

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

  nb::class_<ChannelScale, Op>(module, "ChannelScale", "activation(input * scale[c] + shift[c]).")
      .def(
          "__init__",
          [](ChannelScale* self, const FloatsIn& scale, const FloatsIn& shift, const ActivationSpec& activation,
             const std::string& layout, const std::string& isa) {
            new (self) ChannelScale(vector_of(scale), vector_of(shift), activation_of(activation),
                                    named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          "scale"_a, "shift"_a, nb::kw_only(), "activation"_a = kNoActivation, "layout"_a = "images16", "isa"_a = "",
          "One scale and one shift per channel.");

  nb::class_<LayerNormalization, Op>(module, "LayerNormalization", "Rows without their mean, at a variance of one.")
      .def(
          "__init__",
          [](LayerNormalization* self, const FloatsIn& scale, const FloatsIn& shift, float epsilon,
             const std::string& layout, const std::string& isa) {
            new (self) LayerNormalization(vector_of(scale), vector_of(shift), epsilon,
                                          named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          "scale"_a, "shift"_a, "epsilon"_a, nb::kw_only(), "layout"_a = "images16", "isa"_a = "",
          "One scale and one shift per channel; for inputs of shape (m, channels, 1, 1).");

  nb::class_<Reorder, Op>(module, "Reorder", "From one layout into the other.")
      .def(
          "__init__",
          [](Reorder* self, const std::string& from, const std::string& isa) {
            new (self) Reorder(named(kLayouts, from, "layout"), kernels_of(isa));
          },
          "source"_a, nb::kw_only(), "isa"_a = "", "`source` is the layout of the input.");
}

}  // namespace sift::cpu
