#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "ops/cumulative_sum.h"
#include "ops/softmax.h"
#include "ops/view_arithmetic.h"
#include "products/batched_matmul.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

constexpr Names<ViewArithmeticKind, 22> kKinds{{{"first", ViewArithmeticKind::first},
                                                {"add", ViewArithmeticKind::add},
                                                {"subtract", ViewArithmeticKind::subtract},
                                                {"multiply", ViewArithmeticKind::multiply},
                                                {"divide", ViewArithmeticKind::divide},
                                                {"maximum", ViewArithmeticKind::maximum},
                                                {"minimum", ViewArithmeticKind::minimum},
                                                {"power", ViewArithmeticKind::power},
                                                {"less", ViewArithmeticKind::less},
                                                {"less_or_equal", ViewArithmeticKind::less_or_equal},
                                                {"greater", ViewArithmeticKind::greater},
                                                {"greater_or_equal", ViewArithmeticKind::greater_or_equal},
                                                {"equal", ViewArithmeticKind::equal},
                                                {"where_true", ViewArithmeticKind::where_true},
                                                {"where_false", ViewArithmeticKind::where_false},
                                                {"square_root", ViewArithmeticKind::square_root},
                                                {"reciprocal", ViewArithmeticKind::reciprocal},
                                                {"exponential", ViewArithmeticKind::exponential},
                                                {"softplus", ViewArithmeticKind::softplus},
                                                {"logarithm", ViewArithmeticKind::logarithm},
                                                {"sine", ViewArithmeticKind::sine},
                                                {"cosine", ViewArithmeticKind::cosine}}};

using Sizes = std::vector<std::int64_t>;
// Shape of the tensor, floats in front of the first value, and from one position of each axis to the next.
using ViewSpec = std::tuple<Shape4, std::int64_t, Sizes>;

TensorView view_of(const ViewSpec& spec) {
  const auto& [shape, first, strides] = spec;
  return {shape_of(shape), first, strides};
}

std::optional<TensorView> view_of(const std::optional<ViewSpec>& spec) {
  return spec ? std::optional(view_of(*spec)) : std::nullopt;
}

void init_batched_matmul(BatchedMatmul* self, const Sizes& batch, std::int64_t rows, std::int64_t columns,
                         std::int64_t depth, const ViewSpec& left, const ViewSpec& right, float scale,
                         const std::string& layout, const std::string& isa) {
  new (self) BatchedMatmul({.batch = batch,
                            .rows = rows,
                            .columns = columns,
                            .depth = depth,
                            .scale = scale,
                            .left = view_of(left),
                            .right = view_of(right),
                            .layout = named(kLayouts, layout, "layout")},
                           kernels_of(isa));
}

void init_view_arithmetic(ViewArithmetic* self, const std::string& kind, const Sizes& sizes, const ViewSpec& left,
                          const std::optional<ViewSpec>& right, const std::optional<ViewSpec>& out, float scale,
                          float shift, float fill, const ActivationSpec& activation, const std::string& layout,
                          const std::string& isa) {
  new (self) ViewArithmetic({.kind = named(kKinds, kind, "operation"),
                             .scale = scale,
                             .shift = shift,
                             .fill = fill,
                             .activation = activation_of(activation),
                             .sizes = sizes,
                             .left = view_of(left),
                             .right = view_of(right),
                             .out = view_of(out),
                             .layout = named(kLayouts, layout, "layout")},
                            kernels_of(isa));
}

}  // namespace

void bind_views(nb::module_& module) {
  nb::class_<BatchedMatmul, Op>(module, "BatchedMatmul", "scale * left right^T, for each of a batch of matrices.")
      .def(
          "__init__", &init_batched_matmul, nb::kw_only(), "batch"_a, "rows"_a, "columns"_a, "depth"_a, "left"_a,
          "right"_a, "scale"_a = 1.0F, "layout"_a = "planes", "isa"_a = "",
          "Input and second operand hold `left`, [*batch, rows, depth], and `right`, [*batch, columns, depth]. Each is "
          "(shape of the tensor, floats in front of the first value, floats from one position of each axis to the "
          "next), counted in planes; in images16 of one image, as every image has it. The result is [*batch, rows, "
          "columns], as the channels of one image, or of each.");

  nb::class_<ViewArithmetic, Op>(module, "ViewArithmetic", "activation(left op right) of values where they lie.")
      .def(
          "__init__", &init_view_arithmetic, "kind"_a, nb::kw_only(), "sizes"_a, "left"_a, "right"_a = nb::none(),
          "out"_a = nb::none(), "scale"_a = 1.0F, "shift"_a = 0.0F, "fill"_a = 0.0F, "activation"_a = kNoActivation,
          "layout"_a = "planes", "isa"_a = "",
          "`kind` is 'first', 'add', 'subtract', 'multiply', 'divide', 'maximum', 'minimum' or 'power'; 'less', "
          "'less_or_equal', 'greater', 'greater_or_equal' or 'equal', which make 1 where they hold, and 0; "
          "'where_true' "
          "or 'where_false', which have `left` where `right` is not zero, or is, and `fill` elsewhere; or a function "
          "of "
          "`left` alone: 'square_root', 'reciprocal', 'exponential', 'softplus', 'logarithm', 'sine' or 'cosine'; for "
          "'first', `left` is scaled and shifted. "
          "Input and second operand hold `left` and "
          "`right`, arrays of `sizes`, which are given as those of BatchedMatmul. The result is an array of `sizes` in "
          "order, as the channels of one image, or of each; or it is written to where `out` says, and the rest of that "
          "tensor is left as it is.");

  nb::class_<Softmax, Op>(module, "Softmax", "Softmax over the channels of each row, or pixel of an image.")
      .def(
          "__init__",
          [](Softmax* self, bool is_log, const std::string& layout, const std::string& isa) {
            new (self) Softmax(is_log, named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          nb::kw_only(), "is_log"_a = false, "layout"_a = "images16", "isa"_a = "", "With `is_log`, its logarithm.");

  nb::class_<CumulativeSum, Op>(module, "CumulativeSum", "Sums of all channels up to each, of each row or pixel.")
      .def(
          "__init__",
          [](CumulativeSum* self, bool is_exclusive, bool is_reversed, const std::string& layout) {
            new (self) CumulativeSum(is_exclusive, is_reversed, named(kLayouts, layout, "layout"));
          },
          nb::kw_only(), "is_exclusive"_a = false, "is_reversed"_a = false, "layout"_a = "images16",
          "If exclusive, a channel is no part of its own sum; if reversed, sums begin at the last channel.");
}

}  // namespace sift::cpu
