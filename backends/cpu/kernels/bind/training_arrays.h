// Arrays of the calls of training, held against the shapes of their tensors.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/op.h"
#include "bind/binding_types.h"

namespace sift::cpu {

using MaybeIn = std::optional<FloatsIn>;
using MaybeOut = std::optional<FloatsOut>;
using BytesIn = ReadArray<nanobind::ndarray<const std::uint8_t, nanobind::c_contig, nanobind::device::cpu>>;
using BytesOut = nanobind::ndarray<std::uint8_t, nanobind::c_contig, nanobind::device::cpu>;

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

}  // namespace sift::cpu
