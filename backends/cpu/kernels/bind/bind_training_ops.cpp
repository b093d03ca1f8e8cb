#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/thread_pool.h"
#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "ops/reorder.h"
#include "train/batch_norm.h"
#include "train/channel_sums.h"
#include "train/layer_norm.h"
#include "train/max_pool.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using MaybeIn = std::optional<FloatsIn>;
using MaybeOut = std::optional<FloatsOut>;
using BytesIn = ReadArray<nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cpu>>;
using BytesOut = nb::ndarray<std::uint8_t, nb::c_contig, nb::device::cpu>;

// Arrays of a call, held against the shape of its tensors.
class Arrays {
 public:
  explicit Arrays(const Shape& shape)
      : tensor_(element_count(shape, Layout::nchw_n16)),
        plain_(element_count(shape, Layout::nchw)),
        tokens_(ceil_div(shape.n, kLanes) * kLanes),
        channels_(shape.c) {}

  template <typename Array>
  auto tensor(const Array& array, const char* what) const {
    return checked(array, tensor_, Layout::nchw_n16, what);
  }
  template <typename Array>
  auto planes(const Array& array, const char* what) const {
    return checked(array, plain_, Layout::nchw, what);
  }
  template <typename Array>
  auto tokens(const Array& array, const char* what) const {
    return checked(array, tokens_, Layout::nchw_n16, what);
  }
  template <typename Array>
  auto channels(const Array& array, const char* what) const {
    return checked(array, channels_, Layout::nchw, what);
  }

 private:
  template <typename Array>
  static auto checked(const Array& array, std::int64_t size, Layout layout, const char* what) {
    check_array(array, size, layout, what);
    return array.data();
  }
  template <typename Array>
  static auto checked(const std::optional<Array>& array, std::int64_t size, Layout layout, const char* what) {
    return array ? checked(*array, size, layout, what) : nullptr;
  }

  std::int64_t tensor_;
  std::int64_t plain_;
  std::int64_t tokens_;
  std::int64_t channels_;
};

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

void bind_batch_norm(nb::module_& module) {
  module.def(
      "batch_norm_forward",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& x, const MaybeIn& weight, const MaybeIn& bias,
         float epsilon, bool relu, const MaybeIn& residual, const FloatsOut& out, const FloatsOut& mean,
         const FloatsOut& inverse_std, const MaybeOut& variance, const std::string& isa) {
        const Shape shape = shape_of(sizes);
        const Arrays arrays(shape);
        const BatchNorm args{.x = arrays.tensor(x, "x"),
                             .weight = arrays.channels(weight, "weight"),
                             .bias = arrays.channels(bias, "bias"),
                             .residual = arrays.tensor(residual, "residual"),
                             .relu = relu,
                             .out = arrays.tensor(out, "out")};
        const BatchStatistics statistics{.mean = arrays.channels(mean, "mean"),
                                         .inverse_std = arrays.channels(inverse_std, "inverse_std"),
                                         .variance = arrays.channels(variance, "variance")};
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        batch_norm_forward(pool, shape, args, epsilon, statistics, kernels);
      },
      "pool"_a, "shape"_a, "x"_a, "weight"_a.none(), "bias"_a.none(), "epsilon"_a, "relu"_a, "residual"_a.none(),
      nb::arg("out").noconvert(), nb::arg("mean").noconvert(), nb::arg("inverse_std").noconvert(),
      nb::arg("variance").noconvert() = nb::none(), "isa"_a = "",
      "Write relu((x - mean) * inverse_std * weight + bias + residual), the statistics those of each channel of x, "
      "which are written too. The variance is divided by the number of values. `out` may be x or the residual.");

  module.def(
      "batch_norm_apply",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& x, const MaybeIn& weight, const MaybeIn& bias,
         const FloatsIn& mean, const FloatsIn& inverse_std, bool relu, const MaybeIn& residual, const FloatsOut& out,
         const std::string& isa) {
        const Shape shape = shape_of(sizes);
        const Arrays arrays(shape);
        const BatchNorm args{.x = arrays.tensor(x, "x"),
                             .weight = arrays.channels(weight, "weight"),
                             .bias = arrays.channels(bias, "bias"),
                             .residual = arrays.tensor(residual, "residual"),
                             .relu = relu,
                             .out = arrays.tensor(out, "out")};
        const float* const means = arrays.channels(mean, "mean");
        const float* const factors = arrays.channels(inverse_std, "inverse_std");
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        batch_norm_apply(pool, shape, args, means, factors, kernels);
      },
      "pool"_a, "shape"_a, "x"_a, "weight"_a.none(), "bias"_a.none(), "mean"_a, "inverse_std"_a, "relu"_a,
      "residual"_a.none(), nb::arg("out").noconvert(), "isa"_a = "",
      "As batch_norm_forward, with statistics that are given.");

  module.def(
      "batch_norm_backward",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& dy, const FloatsIn& x, const MaybeIn& out,
         const MaybeIn& weight, const FloatsIn& mean, const FloatsIn& inverse_std, const FloatsOut& dx,
         const FloatsOut& dweight, const FloatsOut& dbias, const MaybeOut& dresidual, const MaybeIn& bias, bool relu,
         bool of_batch, const std::string& isa) {
        const Shape shape = shape_of(sizes);
        const Arrays arrays(shape);
        const BatchNormGradient args{.dy = arrays.tensor(dy, "dy"),
                                     .x = arrays.tensor(x, "x"),
                                     .out = arrays.tensor(out, "out"),
                                     .weight = arrays.channels(weight, "weight"),
                                     .bias = arrays.channels(bias, "bias"),
                                     .mean = arrays.channels(mean, "mean"),
                                     .inverse_std = arrays.channels(inverse_std, "inverse_std"),
                                     .relu = relu || out.has_value(),
                                     .of_batch = of_batch,
                                     .dx = arrays.tensor(dx, "dx"),
                                     .dweight = arrays.channels(dweight, "dweight"),
                                     .dbias = arrays.channels(dbias, "dbias"),
                                     .dresidual = arrays.tensor(dresidual, "dresidual")};
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        batch_norm_backward(pool, shape, args, kernels);
      },
      "pool"_a, "shape"_a, "dy"_a, "x"_a, "out"_a.none(), "weight"_a.none(), "mean"_a, "inverse_std"_a,
      nb::arg("dx").noconvert(), nb::arg("dweight").noconvert(), nb::arg("dbias").noconvert(),
      nb::arg("dresidual").noconvert() = nb::none(), nb::kw_only(), "bias"_a = nb::none(), "relu"_a = false,
      "of_batch"_a = true, "isa"_a = "",
      "Write the gradients of input, weight, bias and residual. The gradient passes where `out` is above zero; with "
      "`relu` and without `out`, where the result for x is, which is computed again: that reads less, needs the bias, "
      "and fits only where no residual was added. Unless `of_batch`, the statistics do not depend on x. dx and "
      "dresidual are zero in lanes beyond the last image; one of them may be dy.");
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

void bind_layer_norm(nb::module_& module) {
  module.def(
      "layer_norm_forward",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& x, const MaybeIn& weight, const MaybeIn& bias,
         float epsilon, const FloatsOut& out, const FloatsOut& mean, const FloatsOut& inverse_std,
         const std::string& isa) {
        const Shape shape = shape_of(sizes);
        const Arrays arrays(shape);
        const LayerNorm args{.x = arrays.tensor(x, "x"),
                             .weight = arrays.channels(weight, "weight"),
                             .bias = arrays.channels(bias, "bias"),
                             .epsilon = epsilon,
                             .out = arrays.tensor(out, "out"),
                             .mean = arrays.tokens(mean, "mean"),
                             .inverse_std = arrays.tokens(inverse_std, "inverse_std")};
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        layer_norm_forward(pool, shape, args, kernels);
      },
      "pool"_a, "shape"_a, "x"_a, "weight"_a.none(), "bias"_a.none(), "epsilon"_a, nb::arg("out").noconvert(),
      nb::arg("mean").noconvert(), nb::arg("inverse_std").noconvert(), "isa"_a = "",
      "Write (x - mean) * inverse_std * weight + bias, the statistics those of each token over its channels. They are "
      "written too, in images16: a number for each token, and zero in lanes beyond the last. `shape` is (tokens, "
      "channels, 1, 1). `out` may be x.");

  module.def(
      "layer_norm_backward",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& dy, const FloatsIn& x, const MaybeIn& weight,
         const FloatsIn& mean, const FloatsIn& inverse_std, const FloatsOut& dx, const MaybeOut& dweight,
         const MaybeOut& dbias, const std::string& isa) {
        const Shape shape = shape_of(sizes);
        const Arrays arrays(shape);
        const LayerNormGradient args{.dy = arrays.tensor(dy, "dy"),
                                     .x = arrays.tensor(x, "x"),
                                     .weight = arrays.channels(weight, "weight"),
                                     .mean = arrays.tokens(mean, "mean"),
                                     .inverse_std = arrays.tokens(inverse_std, "inverse_std"),
                                     .dx = arrays.tensor(dx, "dx"),
                                     .dweight = arrays.channels(dweight, "dweight"),
                                     .dbias = arrays.channels(dbias, "dbias")};
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        layer_norm_backward(pool, shape, args, kernels);
      },
      "pool"_a, "shape"_a, "dy"_a, "x"_a, "weight"_a.none(), "mean"_a, "inverse_std"_a, nb::arg("dx").noconvert(),
      nb::arg("dweight").noconvert() = nb::none(), nb::arg("dbias").noconvert() = nb::none(), "isa"_a = "",
      "Write the gradients of input, weight and bias, from the statistics that layer_norm_forward wrote. dx is zero in "
      "lanes beyond the last token; it may be dy.");
}

}  // namespace

void bind_training_ops(nb::module_& module) {
  bind_conversions(module);
  bind_batch_norm(module);
  bind_layer_norm(module);
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
