#include "base/thread_pool.h"
#include "bind/bindings.h"
#include "bind/training_arrays.h"
#include "ops/reorder.h"
#include "train/activation.h"
#include "train/channel_sums.h"
#include "train/max_pool.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

void bind_conversions(nb::module_& module) {
  module.def(
      "to_lanes",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& x, const FloatsOut& out, const std::string& isa) {
        const Shape shape = shape_of(sizes);
        const Arrays arrays(shape);
        const float* const from = arrays.planes(x, "x");
        float* const to = arrays.tensor(out, "out");
        const Reorder reorder(Layout::nchw, kernels_of(isa));
        const Unlocked unlocked;
        reorder.run(pool, shape, from, {}, to);
      },
      "pool"_a, "shape"_a, "x"_a, nb::arg("out").noconvert(), "isa"_a = "",
      "Write x, [n][c][h][w], to `out` in images16; lanes beyond the last image become zero.");

  module.def(
      "from_lanes",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& x, const FloatsOut& out, const std::string& isa) {
        const Shape shape = shape_of(sizes);
        const Arrays arrays(shape);
        const float* const from = arrays.tensor(x, "x");
        float* const to = arrays.planes(out, "out");
        const Reorder reorder(Layout::nchw_n16, kernels_of(isa));
        const Unlocked unlocked;
        reorder.run(pool, shape, from, {}, to);
      },
      "pool"_a, "shape"_a, "x"_a, nb::arg("out").noconvert(), "isa"_a = "",
      "Write x, in images16, to `out`, [n][c][h][w].");
}

void bind_max_pool(nb::module_& module) {
  module.def(
      "max_pool_forward",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& x, const FloatsOut& out, const BytesOut& taps,
         const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads, const std::string& isa) {
        const TrainablePool layer(geometry_of(kernel, stride, dilation, pads));
        const Shape shape = shape_of(sizes);
        const Arrays of_input(shape);
        const Arrays of_output(layer.output_shape(shape));
        const float* const from = of_input.tensor(x, "x");
        float* const to = of_output.tensor(out, "out");
        std::uint8_t* const chosen = of_output.tensor(taps, "taps");
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        layer.forward(pool, shape, from, to, chosen, kernels);
      },
      "pool"_a, "shape"_a, "x"_a, nb::arg("out").noconvert(), nb::arg("taps").noconvert(), nb::kw_only(), "kernel"_a,
      "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1}, "pads"_a = Shape4{0, 0, 0, 0}, "isa"_a = "",
      "Write the maximum of each window to `out`, and to `taps`, in the same order, the place in the window that it "
      "comes from, row-major. The first of equal maxima counts, and NaN is above all numbers. Pads are (top, left, "
      "bottom, right) and never the maximum; a window of pads alone gives minus infinity.");

  module.def(
      "max_pool_backward",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& dy, const BytesIn& taps, const FloatsOut& dx,
         const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads, const std::string& isa) {
        const TrainablePool layer(geometry_of(kernel, stride, dilation, pads));
        const Shape shape = shape_of(sizes);
        const Arrays of_input(shape);
        const Arrays of_output(layer.output_shape(shape));
        const float* const from = of_output.tensor(dy, "dy");
        const std::uint8_t* const chosen = of_output.tensor(taps, "taps");
        float* const to = of_input.tensor(dx, "dx");
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        layer.backward(pool, shape, from, chosen, to, kernels);
      },
      "pool"_a, "shape"_a, "dy"_a, "taps"_a, nb::arg("dx").noconvert(), nb::kw_only(), "kernel"_a,
      "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1}, "pads"_a = Shape4{0, 0, 0, 0}, "isa"_a = "",
      "Write the gradient of the input to `dx`, from that of the output and the taps that max_pool_forward wrote. "
      "`shape` is that of the input. Lanes of zeros stay zero.");
}

constexpr Names<LaneActivationKind, 10> kFunctions{{{"relu", LaneActivationKind::relu},
                                                    {"leaky", LaneActivationKind::leaky},
                                                    {"clip", LaneActivationKind::clip},
                                                    {"hard_sigmoid", LaneActivationKind::hard_sigmoid},
                                                    {"hard_swish", LaneActivationKind::hard_swish},
                                                    {"sigmoid", LaneActivationKind::sigmoid},
                                                    {"tanh", LaneActivationKind::tanh},
                                                    {"swish", LaneActivationKind::swish},
                                                    {"gelu", LaneActivationKind::gelu},
                                                    {"gelu_tanh", LaneActivationKind::gelu_tanh}}};

LaneActivation function_of(const ActivationSpec& spec) {
  const auto& [name, a, b] = spec;
  return {named(kFunctions, name, "activation"), a, b};
}

void bind_activations(nb::module_& module) {
  module.def(
      "activation_forward",
      [](ThreadPool& pool, const Shape4& sizes, const ActivationSpec& spec, const FloatsIn& x, const FloatsOut& out,
         const std::string& isa) {
        const Shape shape = shape_of(sizes);
        const Arrays arrays(shape);
        const LaneActivation function = function_of(spec);
        const float* const values = arrays.tensor(x, "x");
        float* const to = arrays.tensor(out, "out");
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        activation_forward(pool, element_count(shape, Layout::nchw_n16), function, values, to, kernels);
      },
      "pool"_a, "shape"_a, "function"_a, "x"_a, nb::arg("out").noconvert(), "isa"_a = "",
      "Write f(x). `function` is a name and two numbers: relu, leaky (slope), clip (low, high), hard_sigmoid (slope, "
      "shift), hard_swish, sigmoid, tanh, swish (factor of x in its sigmoid), gelu or gelu_tanh. `out` may be x.");

  module.def(
      "activation_backward",
      [](ThreadPool& pool, const Shape4& sizes, const ActivationSpec& spec, const FloatsIn& dy, const FloatsIn& x,
         const FloatsOut& dx, const std::string& isa) {
        const Shape shape = shape_of(sizes);
        const Arrays arrays(shape);
        const LaneActivation function = function_of(spec);
        const float* const gradient = arrays.tensor(dy, "dy");
        const float* const values = arrays.tensor(x, "x");
        float* const to = arrays.tensor(dx, "dx");
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        activation_backward(pool, element_count(shape, Layout::nchw_n16), function, gradient, values, to, kernels);
      },
      "pool"_a, "shape"_a, "function"_a, "dy"_a, "x"_a, nb::arg("dx").noconvert(), "isa"_a = "",
      "Write the gradient of the input, dy f'(x), to `dx`, which may be dy. Lanes of zeros stay zero.");
}

}  // namespace

void bind_training_ops(nb::module_& module) {
  bind_activations(module);
  bind_conversions(module);
  bind_max_pool(module);

  module.def(
      "channel_sums",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& x, const FloatsOut& out, const std::string& isa) {
        const Shape shape = shape_of(sizes);
        const Arrays arrays(shape);
        const float* const values = arrays.tensor(x, "x");
        float* const sums = arrays.channels(out, "out");
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        channel_sums(pool, shape, values, sums, kernels);
      },
      "pool"_a, "shape"_a, "x"_a, nb::arg("out").noconvert(), "isa"_a = "",
      "Write the sum of each channel of x, in images16, over images and pixels.");
}

}  // namespace sift::cpu
