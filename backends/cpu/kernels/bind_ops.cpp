#include "bind_ops.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "aligned_buffer.h"
#include "cache.h"
#include "conv.h"
#include "elementwise.h"
#include "global_pool.h"
#include "isa.h"
#include "matmul.h"
#include "normalize.h"
#include "op.h"
#include "processors.h"
#include "reorder.h"
#include "sparse_weights.h"
#include "thread_pool.h"
#include "window_op.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using Shape4 = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
using Pair = std::tuple<std::int64_t, std::int64_t>;
using FloatsIn = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename Value, std::size_t Size>
Value named(const std::array<std::pair<const char*, Value>, Size>& names, const std::string& name, const char* what) {
  for (const auto& [known, value] : names) {
    if (name == known) return value;
  }
  throw std::invalid_argument(std::string("unknown ") + what + " '" + name + "'");
}

template <typename Value, std::size_t Size>
const char* name_of(const std::array<std::pair<const char*, Value>, Size>& names, Value wanted) {
  for (const auto& [name, value] : names) {
    if (value == wanted) return name;
  }
  return "";
}

constexpr std::array<std::pair<const char*, Layout>, 2> kLayouts{
    {{"planes", Layout::planes}, {"images16", Layout::images16}}};
constexpr std::array<std::pair<const char*, Algorithm>, 3> kAlgorithms{
    {{"single", Algorithm::single}, {"pair", Algorithm::pair}, {"dense", Algorithm::dense}}};
constexpr std::array<std::pair<const char*, Core>, 2> kCores{{{"amd", Core::amd}, {"intel", Core::intel}}};
constexpr std::array<std::pair<const char*, WeightForm>, 5> kWeightForms{{{"by_row", WeightForm::by_row},
                                                                          {"by_turn", WeightForm::by_turn},
                                                                          {"side_by_side", WeightForm::side_by_side},
                                                                          {"in_pairs", WeightForm::in_pairs},
                                                                          {"dense", WeightForm::dense}}};
constexpr std::array<std::pair<const char*, ActivationKind>, 9> kActivations{
    {{"none", ActivationKind::none},
     {"clip", ActivationKind::clip},
     {"leaky", ActivationKind::leaky},
     {"hard_sigmoid", ActivationKind::hard_sigmoid},
     {"hard_swish", ActivationKind::hard_swish},
     {"sigmoid", ActivationKind::sigmoid},
     {"silu", ActivationKind::silu},
     {"tanh", ActivationKind::tanh},
     {"gelu", ActivationKind::gelu}}};

constexpr std::array<std::pair<const char*, BinaryKind>, 4> kBinaries{{{"first", BinaryKind::first},
                                                                      {"add", BinaryKind::add},
                                                                      {"subtract", BinaryKind::subtract},
                                                                      {"multiply", BinaryKind::multiply}}};

using ActivationSpec = std::tuple<std::string, float, float>;
const ActivationSpec kNoActivation{"none", 0.0F, 0.0F};

// ("none", 0, 0), ("clip", low, high), ("leaky", slope, 0), ...
Activation activation_of(const ActivationSpec& spec) {
  return {named(kActivations, std::get<0>(spec), "activation"), std::get<1>(spec), std::get<2>(spec)};
}

const KernelTable& kernels_of(const std::string& isa) {
  // Asked once: in a virtual machine, CPUID takes tens of microseconds, as long as a small layer.
  static const std::vector<std::string> supported = isa::isas_of(isa::cpu_features());
  const std::string& name = isa.empty() ? supported.front() : isa;
  const KernelTable* const kernels = find_kernels(name.c_str());
  bool runs = false;
  for (const std::string& known : supported) runs = runs || known == name;
  if (kernels == nullptr || !runs) {
    throw std::invalid_argument("this machine does not run instruction set '" + name + "'");
  }
  return *kernels;
}

Shape shape_of(const Shape4& sizes) {
  const Shape shape{std::get<0>(sizes), std::get<1>(sizes), std::get<2>(sizes), std::get<3>(sizes)};
  element_count(shape, Layout::images16);  // throws
  return shape;
}

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

ConvGeometry geometry_of(const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads,
                         std::int64_t groups = 1) {
  // Positions and offsets are computed in 64 bits, from products of two of these.
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const auto check = [](std::int64_t least, std::int64_t value) {
    if (value < least || value > kMost) {
      throw std::invalid_argument("window: kernel, stride and dilation must be positive, and no number above 2**30");
    }
  };
  for (const Pair& pair : {kernel, stride, dilation}) {
    check(1, std::get<0>(pair));
    check(1, std::get<1>(pair));
  }
  const auto [top, left, bottom, right] = pads;
  for (const std::int64_t pad : {top, left, bottom, right}) check(-kMost, pad);
  return {.kernel_h = std::get<0>(kernel),
          .kernel_w = std::get<1>(kernel),
          .stride_h = std::get<0>(stride),
          .stride_w = std::get<1>(stride),
          .dilation_h = std::get<0>(dilation),
          .dilation_w = std::get<1>(dilation),
          .pad_top = std::get<0>(pads),
          .pad_left = std::get<1>(pads),
          .pad_bottom = std::get<2>(pads),
          .pad_right = std::get<3>(pads),
          .groups = groups};
}

int threads_of(int threads) {
  if (threads < 1) throw std::invalid_argument("conv: threads must be positive");
  return threads;
}

nb::typed<nb::dict, nb::str, nb::any> describe(const Conv& conv, const Shape4& sizes, int threads) {
  const Conv::Description description = conv.describe(shape_of(sizes), threads_of(threads));
  const TileShape& tile = description.tile;
  nb::dict result;
  result["algorithm"] = name_of(kAlgorithms, description.algorithm);
  result["lanes"] = std::make_tuple(tile.lanes_h, tile.lanes_w);
  result["tile"] = std::make_tuple(tile.rows, tile.cols, tile.images);
  result["form"] = name_of(kWeightForms, description.form);
  result["slice_channels"] = description.slice_channels;
  result["packed_bytes"] = description.packed_bytes;
  return nb::typed<nb::dict, nb::str, nb::any>(result);
}

std::vector<float> vector_of(const std::optional<FloatsIn>& values) {
  if (!values) return {};
  return {values->data(), values->data() + values->size()};
}

}  // namespace

void bind_ops(nb::module_& module) {
  module.def("usable_cpus", &usable_cpus,
             "Processors that this process may use: its affinity mask, cut to the quota of its cgroup.");
  module.def(
      "cache_bytes", [] { return std::make_tuple(level1_cache_bytes(), level2_cache_bytes(), level3_cache_bytes()); },
      "Bytes of a core's first-level data cache, its second-level cache, and the last-level cache that cores share.");

  module.def(
      "run_multiply_adds",
      [](ThreadPool& pool, std::int64_t iterations, const std::string& isa, bool load) {
        const KernelTable& kernels = kernels_of(isa);
        const nb::gil_scoped_release unlocked;
        pool.parallel_for(pool.threads(), [&](std::int64_t) {
          [[maybe_unused]] volatile float keep = 0;
          if (load) {
            static thread_local AlignedBuffer buffer;  // a fresh page costs as much as a short loop
            float* const operands = buffer.floats(kLoopOperands);
            std::fill_n(operands, kLoopOperands, 1.0F);
            keep = kernels.fma_load_loop(operands, iterations);
          } else {
            keep = kernels.fma_loop(iterations);
          }
        });
        return kernels.peak_flops * iterations * pool.threads();
      },
      "pool"_a, "iterations"_a, "isa"_a = "", nb::kw_only(), "load"_a = false,
      "Do nothing but multiply-adds on every thread, for timing the machine's peak; returns how many operations. Their "
      "operands are in registers, or, with `load`, one of each is loaded from the first-level cache.");

  nb::class_<ThreadPool>(module, "ThreadPool", "Threads that operators share loops with.")
      .def(nb::init<int>(), "threads"_a = 0, "Threads counts the calling one; 0 takes usable_cpus().")
      .def_prop_ro("threads", &ThreadPool::threads, "Number of threads, the calling one included.");

  nb::class_<SparseWeights>(module, "SparseWeights", "The non-zeros of a matrix, [rows][columns].")
      .def_static(
          "from_indices",
          [](std::int64_t rows, std::int64_t columns, const Indices& indices, const FloatsIn& values) {
            const nb::gil_scoped_release unlocked;
            return std::make_shared<SparseWeights>(SparseWeights::from_indices(
                rows, columns, {indices.data(), indices.size()}, {values.data(), values.size()}));
          },
          "rows"_a, "columns"_a, "indices"_a, "values"_a, "From strictly ascending flat indices and their values.")
      .def_static(
          "from_dense",
          [](std::int64_t rows, std::int64_t columns, const FloatsIn& dense, bool transposed) {
            const nb::gil_scoped_release unlocked;
            return std::make_shared<SparseWeights>(
                SparseWeights::from_dense(rows, columns, {dense.data(), dense.size()}, transposed));
          },
          "rows"_a, "columns"_a, "dense"_a, "transposed"_a = false,
          "From all values, [rows][columns] or, transposed, [columns][rows]; zeros are left out.")
      .def(
          "scaled",
          [](const SparseWeights& weights, const FloatsIn& factors) {
            const nb::gil_scoped_release unlocked;
            return std::make_shared<SparseWeights>(weights.scaled({factors.data(), factors.size()}));
          },
          "factors"_a, "A copy, each row multiplied by its factor.")
      .def_prop_ro("rows", &SparseWeights::rows, "Rows of the matrix.")
      .def_prop_ro("columns", &SparseWeights::columns, "Columns of the matrix.")
      .def_prop_ro("nnz", &SparseWeights::nnz, "Number of non-zeros.")
      .def_prop_ro("density", &SparseWeights::density, "Share of non-zeros.")
      .def_prop_ro("nbytes", &SparseWeights::bytes, "Bytes of memory, 8 per non-zero.");

  module.def(
      "count_weights",
      [](const FloatsIn& dense) {
        const nb::gil_scoped_release unlocked;
        const WeightCount count = count_weights({dense.data(), dense.size()});
        return std::pair{count.nnz, count.finite};
      },
      "dense"_a, "Number of values that are not zero, and whether none is infinite or NaN.");

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

  nb::class_<Conv, Op>(module, "Conv", "activation(conv(x, weights) + bias + second), weights sparse or dense.")
      .def(
          "__init__",
          [](Conv* self, std::shared_ptr<const SparseWeights> weights, const std::optional<FloatsIn>& bias,
             const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads, std::int64_t groups,
             const ActivationSpec& activation, const std::string& layout,
             const std::string& algorithm, const std::string& isa, const std::string& core) {
            ConvOptions options;
            options.geometry = geometry_of(kernel, stride, dilation, pads, groups);
            options.activation = activation_of(activation);
            options.layout = named(kLayouts, layout, "layout");
            if (algorithm != "auto") options.algorithm = named(kAlgorithms, algorithm, "algorithm");
            if (!core.empty()) options.core = named(kCores, core, "core");
            new (self) Conv(std::move(weights), vector_of(bias), options, kernels_of(isa));
          },
          "weights"_a, "bias"_a = nb::none(), nb::kw_only(), "kernel"_a = Pair{1, 1}, "stride"_a = Pair{1, 1},
          "dilation"_a = Pair{1, 1}, "pads"_a = Shape4{0, 0, 0, 0}, "groups"_a = 1,
          "activation"_a = kNoActivation, "layout"_a = "images16",
          "algorithm"_a = "auto", "isa"_a = "", "core"_a = "",
          "Pads are (top, left, bottom, right), as ONNX orders them. Columns of the weights are [c / groups][kh][kw]. "
          "Tiles are chosen for this machine's core, or for that of 'amd' or 'intel'.")
      .def(
          "prepare",
          [](const Conv& conv, const Shape4& shape, int threads) {
            const nb::gil_scoped_release unlocked;
            conv.prepare(shape_of(shape), threads_of(threads));
          },
          "shape"_a, "threads"_a,
          "Pack the weights for inputs of this shape, run by so many threads, now instead of in the first run.")
      .def("release_source", &Conv::release_source,
           "Give up this operator's share in its SparseWeights once it has packed them: other shapes are then packed "
           "from the packed form. False, and nothing given up, before that.")
      .def("source", &Conv::source, "The weights; unpacked if they were given up.")
      .def("describe", &describe, "shape"_a, "threads"_a,
           "How inputs of this shape are run by so many threads: algorithm, form of the weights, tile, slices, bytes.");

  nb::class_<Matmul, Op>(module, "Matmul", "activation(x @ weights.T + bias + second) of row-major matrices.")
      .def(
          "__init__",
          [](Matmul* self, std::shared_ptr<const SparseWeights> weights, const std::optional<FloatsIn>& bias,
             const ActivationSpec& activation, const std::string& isa) {
            new (self) Matmul(std::move(weights), vector_of(bias), activation_of(activation), kernels_of(isa));
          },
          "weights"_a, "bias"_a = nb::none(), nb::kw_only(), "activation"_a = kNoActivation, "isa"_a = "",
          "For inputs of shape (m, columns, 1, 1).")
      .def("source", &Matmul::source, "The weights; unpacked if they were given up.")
      .def("release_source", &Matmul::release_source,
           "Give up this operator's share in its SparseWeights once it has packed them: other shapes are then packed "
           "from the packed form. False, and nothing given up, before that.");

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
