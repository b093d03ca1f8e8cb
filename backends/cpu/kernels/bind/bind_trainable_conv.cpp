#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "train/trainable_conv.h"

namespace sift::cpu {

namespace nb = nanobind;
using namespace nb::literals;

void bind_trainable_conv(nb::module_& module) {
  nb::class_<TrainableConv>(module, "TrainableConv",
                            "conv(x, weights) + bias and the gradient of x, for sparse weights whose values change.")
      .def("__init__", &init_sparse_layer<TrainableConv>, "rows"_a, "columns"_a, "indices"_a, "places"_a = nb::none(),
           nb::kw_only(), "kernel"_a = Pair{1, 1}, "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1},
           "pads"_a = Shape4{0, 0, 0, 0}, "groups"_a = 1, "isa"_a = "",
           "From strictly ascending flat indices of the active weights, [rows][c / groups][kh][kw]. The i-th index has "
           "the value at `places[i]` of the vector that `update` takes, without places the i-th. Pads are (top, left, "
           "bottom, right). All tensors are in images16; `shape` is that of the layer's input.")
      .def(
          "update",
          [](TrainableConv& conv, const FloatsIn& values) {
            const Unlocked unlocked;
            conv.update({values.data(), values.size()});
          },
          "values"_a,
          "Copy the values of the weights: before the first run, and whenever they change, not during a run.")
      .def(
          "forward",
          [](const TrainableConv& conv, ThreadPool& pool, const Shape4& sizes, const FloatsIn& x, const FloatsOut& out,
             const std::optional<FloatsIn>& bias) {
            const Shape shape = shape_of(sizes);
            check_array(x, element_count(shape, Layout::nchw_n16), Layout::nchw_n16, "x");
            check_array(out, element_count(conv.output_shape(shape), Layout::nchw_n16), Layout::nchw_n16, "out");
            if (bias) check_array(*bias, conv.rows(), Layout::nchw, "bias");
            const Unlocked unlocked;
            conv.forward(pool, shape, x.data(), bias ? bias->data() : nullptr, out.data());
          },
          "pool"_a, "shape"_a, "x"_a, nb::arg("out").noconvert(), "bias"_a = nb::none(),
          "Write the convolution of x to `out`. Lanes beyond the last image may hold anything finite.")
      .def(
          "input_gradient",
          [](const TrainableConv& conv, ThreadPool& pool, const Shape4& sizes, const FloatsIn& dy,
             const FloatsOut& dx) {
            const Shape shape = shape_of(sizes);
            check_array(dy, element_count(conv.output_shape(shape), Layout::nchw_n16), Layout::nchw_n16, "dy");
            check_array(dx, element_count(shape, Layout::nchw_n16), Layout::nchw_n16, "dx");
            const Unlocked unlocked;
            conv.input_gradient(pool, shape, dy.data(), dx.data());
          },
          "pool"_a, "shape"_a, "dy"_a, nb::arg("dx").noconvert(),
          "Write the gradient of the input, for that of the output, to `dx`. Lanes of zeros stay zero.")
      .def("weight_gradient", &TrainableConv::weight_gradient, nb::call_guard<Unlocked>(),
           "The WeightGradient of the same weights, which takes less memory than one made by itself.")
      .def(
          "output_shape",
          [](const TrainableConv& conv, const Shape4& shape) { return tuple_of(conv.output_shape(shape_of(shape))); },
          "shape"_a, "Shape of the output for an input of shape (n, c, h, w).")
      .def_prop_ro("nnz", &TrainableConv::nnz, "Number of active weights.")
      .def_prop_ro("nbytes", &TrainableConv::bytes, nb::call_guard<Unlocked>(),
                   "Bytes of memory for weights: values, places, and what is packed so far.")
      .def(
          "describe",
          [](const TrainableConv& conv, const Shape4& sizes, int threads) {
            const Shape shape = shape_of(sizes);
            if (threads < 1) throw std::invalid_argument("trainable convolution: threads must be positive");
            Conv::Description forward;
            std::vector<Conv::Description> phases;
            {
              const Unlocked unlocked;
              forward = conv.describe(shape, threads);
              phases = conv.describe_input_gradient(shape, threads);
            }
            nb::list of_phases;
            for (const Conv::Description& phase : phases) of_phases.append(dict_of(phase));
            nb::dict result;
            result["forward"] = dict_of(forward);
            result["input_gradient"] = of_phases;
            return nb::typed<nb::dict, nb::str, nb::any>(result);
          },
          "shape"_a, "threads"_a,
          "How this many threads run inputs of this shape: as Conv.describe for `forward`, and for `input_gradient` a "
          "list of such, one for each phase of the stride that has weights and pixels.");
}

}  // namespace sift::cpu
