// What the bindings of int8 share: Python's tuples, and what they stand for.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bind/binding_types.h"
#include "int8/quad_addition.h"
#include "int8/quad_weights.h"
#include "int8/quantized_conv.h"
#include "simd/int8/kernel_table.h"

namespace sift::cpu {

// (scale, zero point)
using QuantizationSpec = std::tuple<float, int>;
// (low, high)
using RangeSpec = std::tuple<int, int>;
// (own, other, sum)
using AdditionSpec = std::tuple<QuantizationSpec, QuantizationSpec, QuantizationSpec>;

// Of this machine, best first.
std::vector<std::string> int8_isas();

// The kernels of one of them, or the best of a family of instruction sets, or of all if it is empty. Throws
// std::invalid_argument if the machine does not run it.
const Int8Kernels& int8_kernels_of(const std::string& isa);

// These throw std::invalid_argument for what is not in [0, 255], or a range without a byte.
std::uint8_t byte_of(int value);
Quantization quantization_of(const QuantizationSpec& spec);
ByteRange range_of(const RangeSpec& spec);
ScaledAddition addition_of(const AdditionSpec& spec);

// Operators from quads to quads, and from and to other layouts.
void bind_quads(nanobind::module_& module);

// How weights are stored.
void bind_stored_quads(nanobind::class_<QuadWeights>& weights);

}  // namespace sift::cpu
