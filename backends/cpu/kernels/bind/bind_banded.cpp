#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <stdexcept>
#include <utility>

#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "conv/banded/banded_depthwise.h"

namespace sift::cpu {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

int positive(int threads) {
  if (threads < 1) throw std::invalid_argument("bands: threads must be positive");
  return threads;
}

}  // namespace

void bind_banded(nb::module_& module) {
  nb::class_<BandedDepthwise, Op>(module, "BandedDepthwise",
                                  "A depthwise layer and the pointwise layers next to it, in bands of rows.")
      .def(
          "__init__",
          [](BandedDepthwise* self, std::shared_ptr<const Conv> before, std::shared_ptr<const Depthwise> depthwise,
             std::shared_ptr<const Conv> after, std::int64_t rows) {
            new (self) BandedDepthwise(std::move(before), std::move(depthwise), std::move(after), rows);
          },
          nb::arg("before").none(), "depthwise"_a, nb::arg("after").none(), nb::kw_only(), "rows"_a = 0,
          "One of `before` and `after` may be None. All have images in planes; `second` is added by `after`. A band "
          "has `rows` of outputs, or if that is 0 as many as suit the second-level cache.")
      .def_static(
          "joins", [](const Conv& conv) { return conv.runs_pixels(); }, "conv"_a,
          "Whether a convolution can be next to the depthwise one: pointwise, with images in planes.")
      .def(
          "pays",
          [](const BandedDepthwise& banded, const Shape4& shape, int threads) {
            return banded.pays(shape_of(shape), positive(threads));
          },
          "shape"_a, "threads"_a,
          "Whether bands take less time than one layer after the other, for inputs of this shape.")
      .def(
          "band_rows",
          [](const BandedDepthwise& banded, const Shape4& shape, int threads) {
            return banded.band_rows(shape_of(shape), positive(threads));
          },
          "shape"_a, "threads"_a, "Rows of outputs of a band.");
}

}  // namespace sift::cpu
