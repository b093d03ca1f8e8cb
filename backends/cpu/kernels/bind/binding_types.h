// What the bindings share: Python's tuples and names, and what they stand for.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// Lets other threads of Python run, as nanobind's gil_scoped_release. When Python ends, its older versions end a thread
// that wants the lock back, by unwinding its stack; C++ that may not be unwound would end the process then. Such a
// thread waits for the process's end instead, as in Python 3.14.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

using Shape4 = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
using Pair = std::tuple<std::int64_t, std::int64_t>;

// What a function reads. Whatever is not C-contiguous and aligned as its type wants it is copied.
template <typename Array>
struct ReadArray : Array {
  using Array::Array;
};
using FloatsIn = ReadArray<nanobind::ndarray<const float, nanobind::c_contig, nanobind::device::cpu>>;
using IndicesIn =
    ReadArray<nanobind::ndarray<const std::int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>>;

// What a function writes. Taken with noconvert(): what is written to a copy is lost.
using FloatsOut = nanobind::ndarray<float, nanobind::c_contig, nanobind::device::cpu>;

template <typename Array>
bool is_aligned(const Array& array) {
  return reinterpret_cast<std::uintptr_t>(array.data()) % alignof(typename Array::Scalar) == 0;
}

template <typename Value, std::size_t Size>
using Names = std::array<std::pair<const char*, Value>, Size>;

// The words of the Python interface and of profiles.
inline constexpr Names<Layout, 7> kLayoutNames{{{"planes", Layout::nchw},
                                                {"images16", Layout::nchw_n16},
                                                {"bytes", Layout::bytes},
                                                {"quads", Layout::quads},
                                                {"dynamic_quads", Layout::dynamic_quads},
                                                {"float_quads", Layout::float_quads},
                                                {"integers", Layout::integers}}};
// Those of floats alone, which most operators take.
inline constexpr Names<Layout, 2> kLayouts{{kLayoutNames[0], kLayoutNames[1]}};
// And those with bytes beside.
inline constexpr Names<Layout, 3> kFloatLayouts{{kLayoutNames[0], kLayoutNames[1], kLayoutNames[5]}};

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

inline Shape4 tuple_of(const Shape& shape) { return {shape.n, shape.c, shape.h, shape.w}; }

// Throws std::invalid_argument if an array has not as many values, or is not aligned as its layout needs it.
template <typename Array>
void check_array(const Array& array, std::int64_t size, Layout layout, const char* what) {
  if (static_cast<std::int64_t>(array.size()) != size) {
    throw std::invalid_argument(std::string(what) + ": the array has " + std::to_string(array.size()) +
                                " values, the shape " + std::to_string(size));
  }
  if (!is_aligned(array)) throw std::invalid_argument(std::string(what) + ": the array is not aligned to its values");
  if (size > 0 && is_aligned_layout(layout) && reinterpret_cast<std::uintptr_t>(array.data()) % 64 != 0) {
    throw std::invalid_argument(std::string(what) + ": an array in " + name_of(kLayoutNames, layout) +
                                " must be aligned to 64 bytes");
  }
}

ConvGeometry geometry_of(const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads,
                         std::int64_t groups = 1);

// __init__ of a layer of sparse weights, from indices and places as `weights_of_places` has them.
template <typename Layer>
void init_sparse_layer(Layer* self, std::int64_t rows, std::int64_t columns, const IndicesIn& indices,
                       const std::optional<IndicesIn>& places, const Pair& kernel, const Pair& stride,
                       const Pair& dilation, const Shape4& pads, std::int64_t groups, const std::string& isa) {
  const ConvGeometry geometry = geometry_of(kernel, stride, dilation, pads, groups);
  const KernelTable& kernels = kernels_of(isa);
  const Unlocked unlocked;
  using Indices = std::span<const std::int64_t>;
  new (self) Layer(rows, columns, {indices.data(), indices.size()},
                   places ? Indices{places->data(), places->size()} : Indices{}, geometry, kernels);
}

// Empty for None.
std::vector<float> vector_of(const std::optional<FloatsIn>& values);

}  // namespace sift::cpu

template <typename Array>
struct nanobind::detail::type_caster<sift::cpu::ReadArray<Array>> {
  NB_TYPE_CASTER(sift::cpu::ReadArray<Array>, type_caster<Array>::Name)

  bool from_python(handle source, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    type_caster<Array> caster;
    if (!caster.from_python(source, flags, cleanup)) return false;
    if (!sift::cpu::is_aligned(caster.value)) {
      if ((flags & cast_flags::convert) == 0) return false;
      PyObject* const copy = PyObject_CallMethod(source.ptr(), "copy", nullptr);
      if (copy == nullptr) {
        PyErr_Clear();
        return false;
      }
      cleanup->append(copy);
      if (!caster.from_python(copy, flags, cleanup)) return false;
    }
    static_cast<Array&>(value) = std::move(caster.value);
    return true;
  }
};
