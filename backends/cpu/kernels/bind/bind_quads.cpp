#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "bind/binding_types.h"
#include "bind/int8_types.h"
#include "int8/conversions.h"
#include "int8/quad_elementwise.h"
#include "int8/quad_pool.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using TableIn = nb::ndarray<const std::uint8_t, nb::shape<256>, nb::c_contig, nb::device::cpu>;

void bind_conversions(nb::module_& module) {
  nb::class_<Quantize, Op>(module, "Quantize", "QuantizeLinear, from floats to quads.")
      .def(
          "__init__",
          [](Quantize* self, float scale, int zero_point, const std::string& source, const std::string& isa) {
            new (self)
                Quantize(quantization_of({scale, zero_point}), named(kLayouts, source, "layout"), int8_kernels_of(isa));
          },
          "scale"_a, "zero_point"_a, nb::kw_only(), "source"_a = "planes", "isa"_a = "",
          "`source` is the layout of the input.");

  nb::class_<DynamicQuantize, Op>(module, "DynamicQuantize", "DynamicQuantizeLinear, from floats to dynamic_quads.")
      .def(
          "__init__",
          [](DynamicQuantize* self, const std::string& source, const std::string& isa) {
            new (self) DynamicQuantize(named(kLayouts, source, "layout"), int8_kernels_of(isa));
          },
          nb::kw_only(), "source"_a = "planes", "isa"_a = "",
          "One scale and zero point for all of the input, which is therefore not to be cut into batches.");

  nb::class_<Dequantize, Op>(module, "Dequantize", "DequantizeLinear, from quads to floats.")
      .def(
          "__init__",
          [](Dequantize* self, float scale, int zero_point, const std::string& layout, const std::string& isa) {
            new (self) Dequantize(quantization_of({scale, zero_point}), named(kLayouts, layout, "layout"),
                                  int8_kernels_of(isa));
          },
          "scale"_a, "zero_point"_a, nb::kw_only(), "layout"_a = "planes", "isa"_a = "",
          "`layout` is that of the output.");

  nb::class_<ReorderBytes, Op>(module, "ReorderBytes", "Plain bytes to quads, or quads to plain bytes.")
      .def(
          "__init__",
          [](ReorderBytes* self, bool to_quads, bool is_signed, const std::string& isa) {
            new (self) ReorderBytes(to_quads, is_signed, int8_kernels_of(isa));
          },
          nb::kw_only(), "to_quads"_a, "is_signed"_a = false, "isa"_a = "",
          "Plain bytes that are signed are s8, and quads 128 more.");
}

void bind_quadwise(nb::module_& module) {
  nb::class_<QuadAdd, Op>(module, "QuadAdd", "QLinearAdd of the input and the second operand, of one shape.")
      .def(
          "__init__",
          [](QuadAdd* self, const AdditionSpec& addition, const RangeSpec& range, const std::string& isa) {
            const ByteRange bounds = range_of(range);
            new (self) QuadAdd(addition_of(addition), bounds.low, bounds.high, int8_kernels_of(isa));
          },
          "addition"_a, nb::kw_only(), "range"_a = RangeSpec{0, 255}, "isa"_a = "",
          "(scale, zero point) of the input, of the second operand, and of the sum, which is clamped to the range.");

  nb::class_<QuadTable, Op>(module, "QuadTable", "Each byte's entry in a table.")
      .def(
          "__init__",
          [](QuadTable* self, const TableIn& table, const std::string& isa) {
            std::array<std::uint8_t, 256> entries;
            std::copy(table.data(), table.data() + entries.size(), entries.begin());
            new (self) QuadTable(entries, int8_kernels_of(isa));
          },
          "table"_a, nb::kw_only(), "isa"_a = "",
          "256 entries of uint8: activations, or another scale and zero point.");

  nb::class_<QuadChannels, Op>(module, "QuadChannels", "A range of channels to a range of the output's.")
      .def(
          "__init__",
          [](QuadChannels* self, std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t total) {
            new (self) QuadChannels(begin, end, first, total);
          },
          "begin"_a, "end"_a, "first"_a, "total"_a,
          "Channels [begin, end) to those from `first` on of `total`; the others stay as they are. Multiples of four "
          "are "
          "copied faster.");
}

void bind_pools(nb::module_& module) {
  nb::class_<QuadMaxPool, Op>(module, "QuadMaxPool", "MaxPool.")
      .def(
          "__init__",
          [](QuadMaxPool* self, const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads,
             bool ceil_mode, const std::string& isa) {
            new (self) QuadMaxPool(geometry_of(kernel, stride, dilation, pads), ceil_mode, int8_kernels_of(isa));
          },
          "kernel"_a, "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1}, "pads"_a = Shape4{0, 0, 0, 0}, nb::kw_only(),
          "ceil_mode"_a = false, "isa"_a = "", "Pads are (top, left, bottom, right), and never the maximum.");

  nb::class_<QuadAveragePool, Op>(module, "QuadAveragePool", "AveragePool, with other scales behind it.")
      .def(
          "__init__",
          [](QuadAveragePool* self, const QuantizationSpec& in, const QuantizationSpec& out, const Pair& kernel,
             const Pair& stride, const Pair& dilation, const Shape4& pads, bool ceil_mode, bool count_padding,
             const std::string& isa) {
            new (self) QuadAveragePool(geometry_of(kernel, stride, dilation, pads), ceil_mode, count_padding,
                                       quantization_of(in), quantization_of(out), int8_kernels_of(isa));
          },
          "source"_a, "target"_a, "kernel"_a, "stride"_a = Pair{1, 1}, "dilation"_a = Pair{1, 1},
          "pads"_a = Shape4{0, 0, 0, 0}, nb::kw_only(), "ceil_mode"_a = false, "count_padding"_a = false, "isa"_a = "",
          "(scale, zero point) of input and output.");

  nb::class_<QuadGlobalAverage, Op>(module, "QuadGlobalAverage", "QLinearGlobalAveragePool.")
      .def(
          "__init__",
          [](QuadGlobalAverage* self, const QuantizationSpec& in, const QuantizationSpec& out, const std::string& isa) {
            new (self) QuadGlobalAverage(quantization_of(in), quantization_of(out), int8_kernels_of(isa));
          },
          "source"_a, "target"_a, nb::kw_only(), "isa"_a = "", "(scale, zero point) of input and output.");
}

}  // namespace

void bind_quads(nb::module_& module) {
  bind_conversions(module);
  bind_quadwise(module);
  bind_pools(module);
}

}  // namespace sift::cpu
