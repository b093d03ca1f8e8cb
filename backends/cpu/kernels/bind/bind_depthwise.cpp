#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/thread_pool.h"
#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "train/depthwise.h"

namespace sift::cpu {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// With the kernels that it runs on.
struct BoundDepthwise {
  DepthwiseConv conv;
  const KernelTable& kernels;

  void check_input(const FloatsIn& x, const Shape& shape) const {
    check_array(x, element_count(shape, Layout::nchw_n16), Layout::nchw_n16, "x");
  }
  template <typename Array>
  void check_output(const Array& array, const Shape& shape, const char* what) const {
    check_array(array, element_count(conv.output_shape(shape), Layout::nchw_n16), Layout::nchw_n16, what);
  }
  template <typename Array>
  void check_weights(const Array& array, const char* what) const {
    check_array(array, conv.weights(), Layout::nchw, what);
  }
};

}  // namespace

void bind_depthwise(nb::module_& module) {
  nb::class_<BoundDepthwise>(module, "DepthwiseConv",
                             "A convolution with a group for each input channel, whose weights are dense.")
      .def(
          "__init__",
          [](BoundDepthwise* self, std::int64_t rows, const Pair& kernel, const Pair& stride, const Pair& dilation,
             const Shape4& pads, std::int64_t groups, const std::string& isa) {
            const ConvGeometry geometry = geometry_of(kernel, stride, dilation, pads, groups);
            new (self) BoundDepthwise{DepthwiseConv(rows, geometry), kernels_of(isa)};
          },
          "rows"_a, nb::kw_only(), "kernel"_a, "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1},
          "pads"_a = Shape4{0, 0, 0, 0}, "groups"_a, "isa"_a = "",
          "Of `rows` outputs, a multiple of the groups. Pads are (top, left, bottom, right). All tensors are in "
          "images16; `shape` is that of the layer's input. Weights are [rows][kh][kw].")
      .def(
          "output_shape",
          [](const BoundDepthwise& self, const Shape4& shape) {
            return tuple_of(self.conv.output_shape(shape_of(shape)));
          },
          "shape"_a, "Shape of the output for an input of shape (n, c, h, w).")
      .def(
          "forward",
          [](const BoundDepthwise& self, ThreadPool& pool, const Shape4& sizes, const FloatsIn& x,
             const FloatsIn& weight, const FloatsOut& out, const std::optional<FloatsIn>& bias) {
            const Shape shape = shape_of(sizes);
            self.check_input(x, shape);
            self.check_weights(weight, "weight");
            self.check_output(out, shape, "out");
            if (bias) check_array(*bias, self.conv.rows(), Layout::nchw, "bias");
            const Unlocked unlocked;
            self.conv.forward(pool, shape, x.data(), weight.data(), bias ? bias->data() : nullptr, out.data(),
                              self.kernels);
          },
          "pool"_a, "shape"_a, "x"_a, "weight"_a, nb::arg("out").noconvert(), "bias"_a = nb::none(),
          "Write the convolution of x to `out`. Lanes beyond the last image may hold anything finite.")
      .def(
          "input_gradient",
          [](const BoundDepthwise& self, ThreadPool& pool, const Shape4& sizes, const FloatsIn& dy,
             const FloatsIn& weight, const FloatsOut& dx) {
            const Shape shape = shape_of(sizes);
            self.check_output(dy, shape, "dy");
            self.check_weights(weight, "weight");
            check_array(dx, element_count(shape, Layout::nchw_n16), Layout::nchw_n16, "dx");
            const Unlocked unlocked;
            self.conv.input_gradient(pool, shape, dy.data(), weight.data(), dx.data(), self.kernels);
          },
          "pool"_a, "shape"_a, "dy"_a, "weight"_a, nb::arg("dx").noconvert(),
          "Write the gradient of the input, for that of the output, to `dx`. Lanes of zeros stay zero.")
      .def(
          "weight_gradient",
          [](const BoundDepthwise& self, ThreadPool& pool, const Shape4& sizes, const FloatsIn& x, const FloatsIn& dy,
             const FloatsOut& dweight) {
            const Shape shape = shape_of(sizes);
            self.check_input(x, shape);
            self.check_output(dy, shape, "dy");
            self.check_weights(dweight, "dweight");
            const Unlocked unlocked;
            self.conv.weight_gradient(pool, shape, x.data(), dy.data(), dweight.data(), self.kernels);
          },
          "pool"_a, "shape"_a, "x"_a, "dy"_a, nb::arg("dweight").noconvert(),
          "Write the gradient of the weights to `dweight`. Lanes of dy beyond the last image are zero.");
}

}  // namespace sift::cpu
