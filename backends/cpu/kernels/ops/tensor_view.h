// Values of a tensor as an array with axes of its own: transposed, cut or repeated, and not copied.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/op.h"

namespace sift::cpu {

// Each axis is a number of positions at a fixed distance. In NCHW the array is of the whole tensor. In NCHWn16 it is of
// one image, and sixteen images have theirs in the lanes. Distances are floats of the tensor in NCHW either way.
struct TensorView {
  Shape shape;                        // of the tensor
  std::int64_t first = 0;             // floats in front of the first value
  std::vector<std::int64_t> strides;  // from one position of an axis to the next; 0: the same value again
};

inline constexpr std::size_t kMostViewAxes = 8;

// Throws std::invalid_argument that names `op` if an array of `sizes` has too many axes, or leaves the tensor.
void check_view(const std::string& op, const TensorView& view, std::span<const std::int64_t> sizes, Layout layout);

// Values of an array of `sizes`. Throws std::invalid_argument if they are too many to count, or a size is negative.
std::int64_t value_count(std::span<const std::int64_t> sizes);

// Groups of images that share lanes; the whole tensor in NCHW.
inline std::int64_t group_count(const Shape& shape, Layout layout) {
  return layout == Layout::nchw_n16 ? ceil_div(shape.n, kLanes) : 1;
}

// Floats of a group.
inline std::int64_t group_floats(const Shape& shape, Layout layout) {
  const std::int64_t image = shape.c * shape.h * shape.w;
  return layout == Layout::nchw_n16 ? image * kLanes : shape.n * image;
}

// Floats of a value, with those of the other lanes.
inline std::int64_t value_floats(Layout layout) { return layout == Layout::nchw_n16 ? kLanes : 1; }

// Where the value of this number lies, the last axis counting fastest: floats from the first one, in NCHW.
std::int64_t offset_of(std::int64_t number, std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides);

}  // namespace sift::cpu
