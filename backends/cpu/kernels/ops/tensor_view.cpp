#include "ops/tensor_view.h"

#include <stdexcept>

namespace sift::cpu {

std::int64_t value_count(std::span<const std::int64_t> sizes) {
  std::int64_t room = kMostElements;
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size < 0 || size > room) throw std::invalid_argument("view: a size is negative, or there are too many values");
    if (size > 0) room /= size;
    count *= size;
  }
  return count;
}

void check_view(const std::string& op, const TensorView& view, std::span<const std::int64_t> sizes, Layout layout) {
  if (sizes.size() > kMostViewAxes || view.strides.size() != sizes.size()) {
    throw std::invalid_argument(op + ": a view has one stride for each axis, of eight at most");
  }
  element_count(view.shape, layout);
  if (value_count(sizes) == 0) return;
  const std::int64_t images = layout == Layout::nchw_n16 ? 1 : view.shape.n;
  // What is left behind the value that lies furthest.
  std::int64_t room = images * view.shape.c * view.shape.h * view.shape.w - 1;
  const auto take = [&](std::int64_t floats) {
    if (floats < 0 || floats > room) throw std::invalid_argument(op + ": a view leaves its tensor");
    room -= floats;
  };
  take(0);
  take(view.first);
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    const std::int64_t steps = sizes[axis] - 1;
    if (steps == 0) continue;
    if (view.strides[axis] < 0 || view.strides[axis] > kMostElements / steps) {
      throw std::invalid_argument(op + ": a view leaves its tensor");
    }
    take(steps * view.strides[axis]);
  }
}

std::int64_t offset_of(std::int64_t number, std::span<const std::int64_t> sizes,
                       std::span<const std::int64_t> strides) {
  std::int64_t offset = 0;
  for (std::size_t axis = sizes.size(); axis-- > 0; number /= sizes[axis]) {
    offset += number % sizes[axis] * strides[axis];
  }
  return offset;
}

}  // namespace sift::cpu
