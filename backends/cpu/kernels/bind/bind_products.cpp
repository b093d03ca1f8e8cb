#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "conv/conv.h"
#include "conv/pooled_winograd.h"
#include "conv/winograd.h"
#include "products/dense_product.h"
#include "products/matmul.h"
#include "weights/packed_rows.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using MaybeBytes = std::optional<nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

std::span<const std::uint8_t> bytes_of(const MaybeBytes& bytes) {
  if (!bytes) return {};
  return {bytes->data(), bytes->size()};
}

// The words of the argument `algorithm` and of profiles.
constexpr Names<WeightForm, 4> kAlgorithms{{{"single", WeightForm::csr},
                                            {"pair", WeightForm::csr_pairs},
                                            {"dense", WeightForm::dense},
                                            {"generated", WeightForm::code}}};
constexpr Names<Microarchitecture, 4> kMicroarchitectures{{{"amd", Microarchitecture::amd},
                                                           {"zen4", Microarchitecture::zen4},
                                                           {"zen5", Microarchitecture::zen5},
                                                           {"intel", Microarchitecture::intel}}};
constexpr Names<WeightForm, 6> kWeightForms{{{"csr", WeightForm::csr},
                                             {"csr_by_tap", WeightForm::csr_by_tap},
                                             {"sell", WeightForm::sell},
                                             {"csr_pairs", WeightForm::csr_pairs},
                                             {"dense", WeightForm::dense},
                                             {"code", WeightForm::code}}};

constexpr Names<Extension, 4> kExtensions{
    {{"none", Extension::none}, {"vnni", Extension::vnni}, {"vbmi2", Extension::vbmi2}, {"amx", Extension::amx}}};
constexpr Names<ValueType, 4> kValueTypes{{{"float32", ValueType::float32},
                                           {"bfloat16", ValueType::bfloat16},
                                           {"float16", ValueType::float16},
                                           {"int8", ValueType::int8}}};

int threads_of(int threads) {
  if (threads < 1) throw std::invalid_argument("conv: threads must be positive");
  return threads;
}

nb::typed<nb::dict, nb::str, nb::any> describe(const Conv& conv, const Shape4& sizes, int threads) {
  const Conv::Description description = [&] {
    const Unlocked unlocked;
    return conv.describe(shape_of(sizes), threads_of(threads));
  }();
  return dict_of(description);
}

}  // namespace

nb::typed<nb::dict, nb::str, nb::any> dict_of(const Conv::Description& description) {
  const TileShape& tile = description.tile;
  nb::dict result;
  const WeightForm form = description.form;
  const bool is_list = form == WeightForm::csr_by_tap || form == WeightForm::sell;
  result["algorithm"] = name_of(kAlgorithms, is_list ? WeightForm::csr : form);
  result["lanes"] = std::make_tuple(tile.lanes_h, tile.lanes_w);
  result["wraps_rows"] = tile.wraps_rows;
  result["taps_overlap"] = tile.taps_overlap;
  result["tile"] = std::make_tuple(tile.rows, tile.cols, tile.images);
  result["form"] = name_of(kWeightForms, form);
  result["slice_channels"] = description.slice_channels;
  result["packed_bytes"] = description.packed_bytes;
  return nb::typed<nb::dict, nb::str, nb::any>(result);
}

void bind_products(nb::module_& module) {
  nb::class_<SparseWeights> weights(module, "SparseWeights", "The active weights of a matrix, [rows][columns].");
  weights.attr("DENSE_ABOVE") = kDenseAbove;
  weights
      .def_static(
          "from_indices",
          [](std::int64_t rows, std::int64_t columns, const IndicesIn& indices, const FloatsIn& values) {
            const Unlocked unlocked;
            return std::make_shared<SparseWeights>(SparseWeights::from_indices(
                rows, columns, {indices.data(), indices.size()}, {values.data(), values.size()}));
          },
          "rows"_a, "columns"_a, "indices"_a, "values"_a, "From strictly ascending flat indices and their values.")
      .def_static(
          "from_dense",
          [](std::int64_t rows, std::int64_t columns, const FloatsIn& dense, bool transposed, const MaybeBytes& mask) {
            const std::span<const std::uint8_t> bits = bytes_of(mask);
            const Unlocked unlocked;
            return std::make_shared<SparseWeights>(
                SparseWeights::from_dense(rows, columns, {dense.data(), dense.size()}, transposed, bits));
          },
          "rows"_a, "columns"_a, "dense"_a, "transposed"_a = false, "mask"_a = nb::none(),
          "From all values, [rows][columns] or, transposed, [columns][rows]. A mask says which are active: one bit per "
          "value in the same order, from the least significant bit of a byte on. Without one, zeros are left out.")
      .def(
          "scaled",
          [](const SparseWeights& weights, const FloatsIn& factors) {
            const Unlocked unlocked;
            return std::make_shared<SparseWeights>(weights.scaled({factors.data(), factors.size()}));
          },
          "factors"_a, "A copy, each row multiplied by its factor.")
      .def_prop_ro("rows", &SparseWeights::rows, "Rows of the matrix.")
      .def_prop_ro("columns", &SparseWeights::columns, "Columns of the matrix.")
      .def_prop_ro("nnz", &SparseWeights::nnz,
                   "Number of active weights, zeros among them; of all, where nearly all are.")
      .def_prop_ro("density", &SparseWeights::density, "Share of them.")
      .def_prop_ro("nbytes", &SparseWeights::bytes, "Bytes of memory, 8 per active weight, or 4 where all are listed.");
  bind_stored_weights(weights);

  module.def(
      "count_weights",
      [](const FloatsIn& dense, const MaybeBytes& mask) {
        const std::span<const std::uint8_t> bits = bytes_of(mask);
        const Unlocked unlocked;
        const WeightCount count = count_weights({dense.data(), dense.size()}, bits);
        return std::pair{count.nnz, count.finite};
      },
      "dense"_a, "mask"_a = nb::none(),
      "Number of values that are active in a mask as from_dense takes it, or without one not zero, and whether none of "
      "all is infinite or NaN.");

  nb::class_<Conv, Op>(module, "Conv", "activation(conv(x, weights) + bias + second), weights sparse or dense.")
      .def(
          "__init__",
          [](Conv* self, std::shared_ptr<const SparseWeights> weights, const std::optional<FloatsIn>& bias,
             const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads, std::int64_t groups,
             const ActivationSpec& activation, const std::string& layout, const std::string& algorithm,
             const std::string& isa, const std::string& microarchitecture) {
            ConvOptions options;
            options.geometry = geometry_of(kernel, stride, dilation, pads, groups);
            options.activation = activation_of(activation);
            options.layout = named(kLayouts, layout, "layout");
            if (algorithm != "auto") options.form = named(kAlgorithms, algorithm, "algorithm");
            if (!microarchitecture.empty())
              options.microarchitecture = named(kMicroarchitectures, microarchitecture, "microarchitecture");
            const Unlocked unlocked;
            new (self) Conv(std::move(weights), vector_of(bias), options, kernels_of(isa));
          },
          "weights"_a, "bias"_a = nb::none(), nb::kw_only(), "kernel"_a = Pair{1, 1}, "stride"_a = Pair{1, 1},
          "dilation"_a = Pair{1, 1}, "pads"_a = Shape4{0, 0, 0, 0}, "groups"_a = 1, "activation"_a = kNoActivation,
          "layout"_a = "images16", "algorithm"_a = "auto", "isa"_a = "", "microarchitecture"_a = "",
          "Pads are (top, left, bottom, right), as ONNX orders them. Columns of the weights are [c / groups][kh][kw]. "
          "Tiles are chosen for this machine's microarchitecture, or for 'amd', 'zen4', 'zen5' or 'intel'.")
      .def(
          "prepare",
          [](const Conv& conv, const Shape4& shape, int threads) {
            const Unlocked unlocked;
            conv.prepare(shape_of(shape), threads_of(threads), nullptr);
          },
          "shape"_a, "threads"_a,
          "Pack the weights for inputs of this shape, and this many threads now instead of in the first run.")
      .def_static(
          "prepare_all",
          [](const std::vector<std::shared_ptr<Conv>>& layers, const std::vector<std::vector<Shape4>>& shapes,
             ThreadPool& pool) {
            if (layers.size() != shapes.size() ||
                std::ranges::any_of(layers, [](const auto& layer) { return layer == nullptr; })) {
              throw std::invalid_argument("conv: each layer needs its shapes, and each shapes a layer");
            }
            const Unlocked unlocked;
            pool.parallel_for(static_cast<std::int64_t>(layers.size()), [&](std::int64_t i) {
              const auto layer = static_cast<std::size_t>(i);
              for (const Shape4& shape : shapes[layer])
                layers[layer]->prepare(shape_of(shape), pool.threads(), nullptr);
            });
          },
          "layers"_a, "shapes"_a, "pool"_a,
          "Pack the weights of some layers for inputs of these shapes, and the threads of `pool`, on these.")
      .def("release_source", &Conv::release_source, nb::call_guard<Unlocked>(),
           "Give up this operator's share in its SparseWeights once it has packed them: other shapes are then packed "
           "from the packed form. False, and nothing given up, before that.")
      .def("source", &Conv::source, nb::call_guard<Unlocked>(), "The weights; unpacked if they were given up.")
      .def_prop_ro("times_packed", &Conv::times_packed, nb::call_guard<Unlocked>(),
                   "How often weights have been packed so far.")
      .def("describe", &describe, "shape"_a, "threads"_a,
           "How this many threads run inputs of this shape: algorithm, form of the weights, tile, slices, bytes.");

  nb::class_<Winograd, Op>(module, "Winograd", "A dense convolution of few channels, with the operands of Conv.")
      .def(
          "__init__",
          [](Winograd* self, const SparseWeights& weights, const std::optional<FloatsIn>& bias, const Pair& kernel,
             const Pair& stride, const Shape4& pads, const ActivationSpec& activation, const std::string& layout,
             const std::string& isa) {
            const Unlocked unlocked;
            new (self) Winograd(weights, vector_of(bias), geometry_of(kernel, stride, {1, 1}, pads),
                                activation_of(activation), named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          "weights"_a, "bias"_a = nb::none(), nb::kw_only(), "kernel"_a, "stride"_a = Pair{1, 1},
          "pads"_a = Shape4{0, 0, 0, 0}, "activation"_a = kNoActivation, "layout"_a = "images16", "isa"_a = "",
          "Keeps no reference to the weights.")
      .def_static(
          "suits",
          [](std::int64_t columns, const Pair& kernel, const Pair& stride, const Pair& dilation, std::int64_t groups) {
            return Winograd::suits(geometry_of(kernel, stride, dilation, {0, 0, 0, 0}, groups), columns);
          },
          "columns"_a, nb::kw_only(), "kernel"_a, "stride"_a, "dilation"_a, "groups"_a,
          "Whether a convolution of rows of so many weights is one of three or four taps per phase, few phases deep.")
      .def_prop_ro("tile", &Winograd::tile, "Outputs of a tile along an axis.");

  nb::class_<PooledWinograd, Op>(module, "PooledWinograd", "A Winograd and the MaxPool behind it, in one.")
      .def(
          "__init__",
          [](PooledWinograd* self, const SparseWeights& weights, const std::optional<FloatsIn>& bias,
             const Pair& kernel, const Pair& stride, const Shape4& pads, const ActivationSpec& activation,
             const Pair& window, const Pair& window_stride, const Shape4& window_pads, bool ceil_mode,
             const std::string& layout, const std::string& isa) {
            const Unlocked unlocked;
            new (self)
                PooledWinograd(weights, vector_of(bias), geometry_of(kernel, stride, {1, 1}, pads),
                               activation_of(activation), geometry_of(window, window_stride, {1, 1}, window_pads),
                               ceil_mode, named(kLayouts, layout, "layout"), kernels_of(isa));
          },
          "weights"_a, "bias"_a = nb::none(), nb::kw_only(), "kernel"_a, "stride"_a = Pair{1, 1},
          "pads"_a = Shape4{0, 0, 0, 0}, "activation"_a = kNoActivation, "window"_a, "window_stride"_a = Pair{1, 1},
          "window_pads"_a = Shape4{0, 0, 0, 0}, "ceil_mode"_a = false, "layout"_a = "images16", "isa"_a = "",
          "The window is that of the pooling, behind the activation. Keeps no reference to the weights.")
      .def_prop_ro("tile", &PooledWinograd::tile, "Outputs of the convolution's tile along an axis.");

  nb::class_<DenseProduct, Op>(module, "DenseProduct",
                               "activation(x @ weights.T + bias + second), dense weights, rows of x in lanes.")
      .def(
          "__init__",
          [](DenseProduct* self, const SparseWeights& weights, const std::optional<FloatsIn>& bias,
             const ActivationSpec& activation, const std::string& isa) {
            const Unlocked unlocked;
            new (self) DenseProduct(weights, vector_of(bias), activation_of(activation), kernels_of(isa));
          },
          "weights"_a, "bias"_a = nb::none(), nb::kw_only(), "activation"_a = kNoActivation, "isa"_a = "",
          "For inputs of shape (m, columns, 1, 1) in images16. Keeps no reference to the weights.")
      .def_static("suits", &DenseProduct::suits, "rows"_a, "columns"_a,
                  "Whether dense weights of this size are multiplied faster so than by a Conv.")
      .def(
          "halves", [](const DenseProduct& product, const Shape4& shape) { return product.halves(shape_of(shape)); },
          "shape"_a, "Whether inputs of this shape are multiplied by Strassen's algorithm, as long as they are finite.")
      .def_prop_ro("tile_rows", &DenseProduct::tile_rows, "Rows of weights whose sums are in registers together.")
      .def("source", &DenseProduct::source, nb::call_guard<Unlocked>(), "The weights, out of what was packed of them.")
      .def(
          "release_source", [](const DenseProduct&) { return true; }, "As that of Conv; there is no share to give up.");

  nb::class_<PackedRows> rows(module, "PackedRows", "Weights of a matrix product, packed for any number of rows of x.");
  bind_stored_rows(rows);
  rows.def(
          "__init__",
          [](PackedRows* self, const SparseWeights& weights, const std::string& values,
             const std::optional<FloatsIn>& scales, std::int64_t group, const std::string& isa,
             const std::string& extension) {
            const ValueType type = named(kValueTypes, values, "type of values");
            const Extension most = named(kExtensions, extension, "extension");
            const Unlocked unlocked;
            const KernelTable& kernels = kernels_of(isa);
            const PackedRowKernels& packed_kernels = packed_row_kernels(kernels, most);
            const PackedFor own{.floats_as_lists_below = packed_kernels.floats_as_lists_below,
                                .bytes_as_lists_below = packed_kernels.bytes_as_lists_below,
                                .most_window_bytes = packed_kernels.window_bytes(type)};
            new (self) PackedRows(PackedRows::pack(weights, type, {vector_of(scales), group}, own));
          },
          "weights"_a, "values"_a = "float32", "scales"_a = nb::none(), "group"_a = 0, nb::kw_only(), "isa"_a = "",
          "extension"_a = "amx",
          "Values are 'float32', 'bfloat16', 'float16' or 'int8', rounded to the nearest; int8 without scales gets one "
          "per row. Scales are [rows], or [rows][groups]; a group's columns are a multiple of 16; int8 "
          "weights must be whole numbers then. Where a weight is too large for float16, all are float32. Lists of "
          "float32 are chosen at any density where the instruction set has nothing to spread values with, and lists or "
          "windows for sparse int8 with a scale per row where it has no instruction that brings bytes to their "
          "columns; "
          "an extension is as for Matmul. Keeps no reference to the weights.")
      .def_prop_ro("rows", &PackedRows::rows, "Rows of the matrix.")
      .def_prop_ro("columns", &PackedRows::columns, "Columns of the matrix.")
      .def_prop_ro("nnz", &PackedRows::nnz, "Number of active weights.")
      .def_prop_ro("nbytes", &PackedRows::bytes, "Bytes of memory.")
      .def_prop_ro("form", &PackedRows::form, "'bitmap', 'dense', 'list' or 'windows'.")
      .def_prop_ro(
          "values", [](const PackedRows& packed) { return name_of(kValueTypes, packed.type()); }, "Type of the values.")
      .def(
          "source", [](const PackedRows& packed) { return std::make_shared<SparseWeights>(packed.source()); },
          nb::call_guard<Unlocked>(), "The weights as float32, with their scales.");

  nb::class_<Matmul, Op>(module, "Matmul", "activation(x @ weights.T + bias + second) of matrices.")
      .def(
          "__init__",
          [](Matmul* self, std::shared_ptr<const PackedRows> weights, const std::optional<FloatsIn>& bias,
             const ActivationSpec& activation, const std::string& layout, bool rounds_activations,
             const std::string& isa, const std::string& extension) {
            const MatmulOptions options{.activation = activation_of(activation),
                                        .layout = named(kLayouts, layout, "layout"),
                                        .rounds_activations = rounds_activations,
                                        .extension = named(kExtensions, extension, "extension")};
            const Unlocked unlocked;
            new (self) Matmul(std::move(weights), vector_of(bias), options, kernels_of(isa));
          },
          "weights"_a, "bias"_a = nb::none(), nb::kw_only(), "activation"_a = kNoActivation, "layout"_a = "planes",
          "rounds_activations"_a = false, "isa"_a = "", "extension"_a = "amx",
          "For inputs of shape (m, columns, 1, 1). Operators of the same PackedRows share them. Activations may be "
          "rounded to 16 bits by a scale per row, where weights of int8 have one too, if that loses at most 2^-11 of "
          "the mean magnitude of a row. An extension "
          "(none, vnni, vbmi2, amx: each has those before it) is of avx512, and used where this machine has it.")
      .def(
          "__init__",
          [](Matmul* self, const SparseWeights& weights, const std::optional<FloatsIn>& bias,
             const ActivationSpec& activation, const std::string& isa) {
            const Unlocked unlocked;
            new (self) Matmul(weights, vector_of(bias), activation_of(activation), kernels_of(isa));
          },
          "weights"_a, "bias"_a = nb::none(), nb::kw_only(), "activation"_a = kNoActivation, "isa"_a = "",
          "Packs the weights as float32, row-major x. Keeps no reference to them.")
      .def("source", &Matmul::source, nb::call_guard<Unlocked>(), "The weights, out of what was packed of them.")
      .def("release_source", [](const Matmul&) { return true; }, "As that of Conv; there is no share to give up.");
}

}  // namespace sift::cpu
