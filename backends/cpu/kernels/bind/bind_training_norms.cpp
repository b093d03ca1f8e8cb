#include "base/thread_pool.h"
#include "bind/bindings.h"
#include "bind/training_arrays.h"
#include "train/batch_norm.h"
#include "train/batch_norm_pool.h"
#include "train/layer_norm.h"
#include "train/max_pool.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

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

void bind_batch_norm_pool(nb::module_& module) {
  module.def(
      "batch_norm_pool_forward",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& x, const MaybeIn& weight, const MaybeIn& bias,
         std::optional<float> epsilon, bool relu, const FloatsOut& out, const FloatsOut& chosen, const BytesOut& taps,
         const FloatsOut& mean, const FloatsOut& inverse_std, const MaybeOut& variance, const Pair& kernel,
         const Pair& stride, const Pair& dilation, const Shape4& pads, const std::string& isa) {
        const ConvGeometry geometry = geometry_of(kernel, stride, dilation, pads);
        const Shape shape = shape_of(sizes);
        const Arrays arrays(shape);
        const Arrays of_output(pooled_shape(geometry, shape));
        const BatchNormPool args{.x = arrays.tensor(x, "x"),
                                 .weight = arrays.channels(weight, "weight"),
                                 .bias = arrays.channels(bias, "bias"),
                                 .relu = relu,
                                 .out = of_output.tensor(out, "out"),
                                 .chosen = of_output.tensor(chosen, "chosen"),
                                 .taps = of_output.tensor(taps, "taps")};
        const BatchStatistics statistics{.mean = arrays.channels(mean, "mean"),
                                         .inverse_std = arrays.channels(inverse_std, "inverse_std"),
                                         .variance = arrays.channels(variance, "variance")};
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        batch_norm_pool_forward(pool, geometry, shape, args, epsilon ? &*epsilon : nullptr, statistics, kernels);
      },
      "pool"_a, "shape"_a, "x"_a, "weight"_a.none(), "bias"_a.none(), "epsilon"_a.none(), "relu"_a,
      nb::arg("out").noconvert(), nb::arg("chosen").noconvert(), nb::arg("taps").noconvert(),
      nb::arg("mean").noconvert(), nb::arg("inverse_std").noconvert(), nb::arg("variance").noconvert() = nb::none(),
      nb::kw_only(), "kernel"_a, "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1}, "pads"_a = Shape4{0, 0, 0, 0},
      "isa"_a = "",
      "Write the maximum of each window of relu((x - mean) * inverse_std * weight + bias) to `out`, the x that it "
      "comes "
      "from to `chosen`, and its place in the window to `taps`, as max_pool_forward has it; 255 where the ReLU lets no "
      "gradient pass. Statistics are written, or given if `epsilon` is None. `shape` is that of x.");

  module.def(
      "batch_norm_pool_backward",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& dy, const FloatsIn& x, const FloatsIn& chosen,
         const BytesIn& taps, const MaybeIn& weight, const MaybeIn& bias, const FloatsIn& mean,
         const FloatsIn& inverse_std, bool relu, bool of_batch, const FloatsOut& dx, const FloatsOut& dweight,
         const FloatsOut& dbias, const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads,
         const std::string& isa) {
        const ConvGeometry geometry = geometry_of(kernel, stride, dilation, pads);
        const Shape shape = shape_of(sizes);
        const Arrays arrays(shape);
        const Arrays of_output(pooled_shape(geometry, shape));
        const BatchNormPoolGradient args{.dy = of_output.tensor(dy, "dy"),
                                         .x = arrays.tensor(x, "x"),
                                         .chosen = of_output.tensor(chosen, "chosen"),
                                         .taps = of_output.tensor(taps, "taps"),
                                         .weight = arrays.channels(weight, "weight"),
                                         .bias = arrays.channels(bias, "bias"),
                                         .mean = arrays.channels(mean, "mean"),
                                         .inverse_std = arrays.channels(inverse_std, "inverse_std"),
                                         .relu = relu,
                                         .of_batch = of_batch,
                                         .dx = arrays.tensor(dx, "dx"),
                                         .dweight = arrays.channels(dweight, "dweight"),
                                         .dbias = arrays.channels(dbias, "dbias")};
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        batch_norm_pool_backward(pool, geometry, shape, args, kernels);
      },
      "pool"_a, "shape"_a, "dy"_a, "x"_a, "chosen"_a, "taps"_a, "weight"_a.none(), "bias"_a.none(), "mean"_a,
      "inverse_std"_a, "relu"_a, "of_batch"_a, nb::arg("dx").noconvert(), nb::arg("dweight").noconvert(),
      nb::arg("dbias").noconvert(), nb::kw_only(), "kernel"_a, "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1},
      "pads"_a = Shape4{0, 0, 0, 0}, "isa"_a = "",
      "Write the gradients of input, weight and bias, from what batch_norm_pool_forward wrote. `shape` is that of x. "
      "Unless `of_batch`, the statistics do not depend on x. dx is zero in lanes beyond the last image.");
}

void bind_layer_norm(nb::module_& module) {
  module.def(
      "layer_norm_forward",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& x, const MaybeIn& weight, const MaybeIn& bias,
         float epsilon, const FloatsOut& out, const MaybeOut& mean, const FloatsOut& inverse_std,
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
      nb::arg("mean").noconvert().none(), nb::arg("inverse_std").noconvert(), "isa"_a = "",
      "Write (x - mean) * inverse_std * weight + bias, the statistics those of each token over its channels. They are "
      "written too, in images16: a number for each token, and zero in lanes beyond the last. `shape` is (tokens, "
      "channels, 1, 1). `out` may be x. Without a place for the mean it is taken as zero: RMS normalization.");

  module.def(
      "layer_norm_backward",
      [](ThreadPool& pool, const Shape4& sizes, const FloatsIn& dy, const FloatsIn& x, const MaybeIn& weight,
         const MaybeIn& mean, const FloatsIn& inverse_std, const FloatsOut& dx, const MaybeOut& dweight,
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
      "pool"_a, "shape"_a, "dy"_a, "x"_a, "weight"_a.none(), "mean"_a.none(), "inverse_std"_a,
      nb::arg("dx").noconvert(), nb::arg("dweight").noconvert() = nb::none(), nb::arg("dbias").noconvert() = nb::none(),
      "isa"_a = "",
      "Write the gradients of input, weight and bias, from the statistics that layer_norm_forward wrote. dx is zero in "
      "lanes beyond the last token; it may be dy.");
}

}  // namespace

void bind_training_norms(nb::module_& module) {
  bind_batch_norm(module);
  bind_batch_norm_pool(module);
  bind_layer_norm(module);
}

}  // namespace sift::cpu
