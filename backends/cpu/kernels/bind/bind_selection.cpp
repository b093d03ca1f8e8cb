#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "ops/selection/arg_extreme.h"
#include "ops/selection/gather_elements.h"
#include "ops/selection/reduce_extreme.h"
#include "ops/selection/scatter_elements.h"
#include "ops/selection/top_k.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// As attributes of ONNX have them.
constexpr Names<Scattering, 5> kScatterings{{{"none", Scattering::replaced},
                                             {"add", Scattering::sum},
                                             {"mul", Scattering::product},
                                             {"max", Scattering::maximum},
                                             {"min", Scattering::minimum}}};

}  // namespace

void bind_selection(nb::module_& module) {
  nb::class_<ArgExtreme, Op>(module, "ArgExtreme", "ArgMax or ArgMin over the channels of each row, or pixel.")
      .def(
          "__init__",
          [](ArgExtreme* self, bool is_least, bool takes_last, const std::string& layout, const std::string& isa) {
            new (self) ArgExtreme(is_least, takes_last, named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          nb::kw_only(), "is_least"_a = false, "takes_last"_a = false, "layout"_a = "planes", "isa"_a = "",
          "`takes_last`: of equal values the last one. The result is (n, 1, h, w), in integers.");

  nb::class_<ReduceExtreme, Op>(module, "ReduceExtreme", "The largest or smallest value of each column of an image.")
      .def(
          "__init__",
          [](ReduceExtreme* self, bool is_least, const std::string& layout, const std::string& isa) {
            new (self) ReduceExtreme(is_least, named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          nb::kw_only(), "is_least"_a = false, "layout"_a = "planes", "isa"_a = "", "The result is (n, c, 1, w).");

  nb::class_<TopK, Op>(module, "TopK", "Places of the k largest channels of each row, or pixel of an image, in order.")
      .def(
          "__init__",
          [](TopK* self, std::int64_t k, bool is_least, const std::string& isa) {
            new (self) TopK(k, is_least, kernels_of(isa));
          },
          "k"_a, nb::kw_only(), "is_least"_a = false, "isa"_a = "",
          "With `is_least`, of the k smallest. From planes; the result is (n, k, h, w), in integers.");

  nb::class_<GatherElements, Op>(module, "GatherElements", "Channels of each row, or pixel, by indices of its own.")
      .def(nb::init<std::int64_t, bool>(), "count"_a, "has_index_for_all"_a = false,
           "The second operand is (n, count, h, w), in integers, or (n, count, 1, 1) if pixels share their indices; "
           "operand and result are in planes.");

  nb::class_<ScatterElements, Op>(module, "ScatterElements", "Channels of each row, or pixel, at indices of its own.")
      .def(
          "__init__",
          [](ScatterElements* self, std::int64_t count, const std::string& reduction, bool has_index_for_all,
             std::optional<float> fill, std::optional<float> first) {
            const Scattering scattering = named(kScatterings, reduction, "reduction");
            new (self) ScatterElements(count, {scattering, has_index_for_all, fill, first});
          },
          "count"_a, nb::kw_only(), "reduction"_a = "none", "has_index_for_all"_a = false, "fill"_a = nb::none(),
          "first"_a = nb::none(),
          "The second operand is as the first, in integers, or (n, c, 1, 1) if pixels share their indices. The result "
          "is (n, count, h, w), and begins as `fill`, or as the third operand, but for places that values come to, "
          "which "
          "begin as `first`, if that is given; all are in planes.");

  nb::class_<CastIntegers, Op>(module, "CastIntegers", "Integers as floats in planes.").def(nb::init<>());
}

}  // namespace sift::cpu
