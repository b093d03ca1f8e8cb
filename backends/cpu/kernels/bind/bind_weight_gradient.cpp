#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/thread_pool.h"
#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "train/weight_gradient/weight_gradient.h"

namespace sift::cpu {

namespace nb = nanobind;
using namespace nb::literals;

void bind_weight_gradient(nb::module_& module) {
  nb::class_<WeightGradient>(module, "WeightGradient", "The gradient of a convolution's active weights.")
      .def(
          "__init__", &init_sparse_layer<WeightGradient>, "rows"_a, "columns"_a, "indices"_a, "places"_a = nb::none(),
          nb::kw_only(), "kernel"_a = Pair{1, 1}, "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1},
          "pads"_a = Shape4{0, 0, 0, 0}, "groups"_a = 1, "isa"_a = "",
          "From strictly ascending flat indices of the active weights, [rows][c / groups][kh][kw]. The gradient of the "
          "i-th index goes to `places[i]`, without places to the i-th. Pads are (top, left, bottom, right).")
      .def(
          "run",
          [](const WeightGradient& gradient, ThreadPool& pool, const Shape4& sizes, const FloatsIn& x,
             const FloatsIn& dy, const FloatsOut& dvalues, bool accumulate) {
            const Shape shape = shape_of(sizes);
            check_array(x, element_count(shape, Layout::nchw_n16), Layout::nchw_n16, "x");
            check_array(dy, element_count(gradient.output_shape(shape), Layout::nchw_n16), Layout::nchw_n16, "dy");
            check_array(dvalues, gradient.nnz(), Layout::nchw, "dvalues");
            const Unlocked unlocked;
            gradient.run(pool, shape, x.data(), dy.data(), dvalues.data(), accumulate);
          },
          "pool"_a, "shape"_a, "x"_a, "dy"_a, nb::arg("dvalues").noconvert(), "accumulate"_a = false,
          "Write the gradients to `dvalues`, or add them. x and dy, the input and the output's gradient, are in "
          "images16; `shape` is that of x. Lanes beyond the last image are zero in dy, and finite in x.")
      .def(
          "output_shape",
          [](const WeightGradient& gradient, const Shape4& shape) {
            return tuple_of(gradient.output_shape(shape_of(shape)));
          },
          "shape"_a, "Shape of the output, and so of dy, for an input of shape (n, c, h, w).")
      .def_prop_ro("nnz", &WeightGradient::nnz, "Number of active weights.");
}

}  // namespace sift::cpu
