#include "ops/selection/reduce_extreme.h"

#include <algorithm>
#include <stdexcept>

#include "ops/selection/unit_tasks.h"

namespace sift::cpu {
namespace {

// Lanes of a task: what it reads of one row is a few cache lines.
constexpr std::int64_t kMostLanes = 256;

}  // namespace

Shape ReduceExtreme::output_shape(const Shape& in) const {
  if (in.h < 1) throw std::invalid_argument("reduce extreme: it is of one value and more");
  return {in.n, in.c, 1, in.w};
}

void ReduceExtreme::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  if (element_count(shape, layout_) == 0) return;
  const bool in_lanes = layout_ == Layout::nchw_n16;
  const std::int64_t images = (in_lanes ? ceil_div(shape.n, kLanes) : shape.n) * shape.c;
  const std::int64_t columns = shape.w * (in_lanes ? kLanes : 1);
  if (columns == 1) {
    return for_each_task(pool, images, shape.h, [&](std::int64_t row, std::int64_t end) {
      for (; row < end; ++row) out[row] = kernels_.extreme_value_of_row(in + row * shape.h, shape.h, is_least_);
    });
  }
  const std::int64_t most = std::min(columns, kMostLanes);
  const std::int64_t blocks = ceil_div(columns, most);
  for_each_task(pool, images * blocks, shape.h * most, [&](std::int64_t unit, std::int64_t end) {
    for (; unit < end; ++unit) {
      const std::int64_t image = unit / blocks;
      const std::int64_t first = unit % blocks * most;
      kernels_.extreme_values_of_lanes({.x = in + (image * shape.h * columns + first),
                                        .count = shape.h,
                                        .stride = columns,
                                        .lanes = std::min(most, columns - first),
                                        .is_least = is_least_,
                                        .out = out + (image * columns + first)});
    }
  });
}

}  // namespace sift::cpu
