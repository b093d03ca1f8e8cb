// What the bindings share: Python's tuples and names, and what they stand for.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernel_table.h"
#include "op.h"
#include "tiling.h"

namespace sift::cpu {

using Shape4 = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
using Pair = std::tuple<std::int64_t, std::int64_t>;
using FloatsIn = nanobind::ndarray<const float, nanobind::c_contig, nanobind::device::cpu>;
using FloatsOut = nanobind::ndarray<float, nanobind::c_contig, nanobind::device::cpu>;

template <typename Value, std::size_t Size>
using Names = std::array<std::pair<const char*, Value>, Size>;

inline constexpr Names<Layout, 2> kLayouts{{{"planes", Layout::planes}, {"images16", Layout::images16}}};

// Throws std::invalid_argument for a name that is not among them.
template <typename Value, std::size_t Size>
Value named(const Names<Value, Size>& names, const std::string& name, const char* what) {
  for (const auto& [known, value] : names) {
    if (name == known) return value;
  }
  throw std::invalid_argument(std::string("unknown ") + what + " '" + name + "'");
}

template <typename Value, std::size_t Size>
const char* name_of(const Names<Value, Size>& names, Value wanted) {
  for (const auto& [name, value] : names) {
    if (value == wanted) return name;
  }
  return "";
}

// ("none", 0, 0), ("clip", low, high), ("leaky", slope, 0), ...
using ActivationSpec = std::tuple<std::string, float, float>;
inline const ActivationSpec kNoActivation{"none", 0.0F, 0.0F};
Activation activation_of(const ActivationSpec& spec);

// The kernels for an instruction set, for this machine's best if it is empty. Throws std::invalid_argument if the
// machine does not run it.
const KernelTable& kernels_of(const std::string& isa);

// Throws std::invalid_argument if its values cannot be counted.
Shape shape_of(const Shape4& sizes);

ConvGeometry geometry_of(const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads,
                         std::int64_t groups = 1);

// Empty for None.
std::vector<float> vector_of(const std::optional<FloatsIn>& values);

}  // namespace sift::cpu
