#include "ops/selection/arg_extreme.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "ops/selection/integers.h"
#include "ops/selection/unit_tasks.h"

namespace sift::cpu {
Shape ArgExtreme::output_shape(const Shape& in) const {
  if (in.c < 1 || in.c > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument("arg extreme: it is of one value and more, and of fewer than 2**31");
  }
  return {in.n, 1, in.h, in.w};
}

void ArgExtreme::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  if (element_count(shape, layout_) == 0) return;
  if (layout_ == Layout::nchw_n16) return run_lanes(pool, shape, in, out);
  if (shape.h * shape.w == 1) return run_rows(pool, shape, in, out);
  run_planes(pool, shape, in, out);
}

void ArgExtreme::run_rows(ThreadPool& pool, const Shape& shape, const float* in, float* out) const {
  for_each_task(pool, shape.n, shape.c, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t row = first; row < end; ++row) {
      store_integer(out, row, kernels_.extreme_of_row(in + row * shape.c, shape.c, is_least_, takes_last_));
    }
  });
}

// Lanes hold pixels of one image.
void ArgExtreme::run_planes(ThreadPool& pool, const Shape& shape, const float* in, float* out) const {
  const std::int64_t pixels = shape.h * shape.w;
  const std::int64_t most = std::min<std::int64_t>(pixels, kExtremeLanes);
  const std::int64_t blocks = ceil_div(pixels, most);
  for_each_task(pool, shape.n * blocks, shape.c * most, [&](std::int64_t unit, std::int64_t end) {
    std::int32_t places[kExtremeLanes];
    for (; unit < end; ++unit) {
      const std::int64_t image = unit / blocks;
      const std::int64_t first = unit % blocks * most;
      const std::int64_t lanes = std::min(most, pixels - first);
      find(in + (image * shape.c * pixels + first), shape.c, pixels, lanes, places);
      const std::int64_t at = image * pixels + first;
      for (std::int64_t lane = 0; lane < lanes; ++lane) store_integer(out, at + lane, places[lane]);
    }
  });
}

// Lanes hold sixteen images, and a few adjacent pixels of them.
void ArgExtreme::run_lanes(ThreadPool& pool, const Shape& shape, const float* in, float* out) const {
  const std::int64_t pixels = shape.h * shape.w;
  const std::int64_t most = std::min(pixels, kExtremeLanes / kLanes);
  const std::int64_t blocks = ceil_div(pixels, most);
  const std::int64_t units = ceil_div(shape.n, kLanes) * blocks;
  for_each_task(pool, units, shape.c * most * kLanes, [&](std::int64_t unit, std::int64_t end) {
    std::int32_t places[kExtremeLanes];
    for (; unit < end; ++unit) {
      const std::int64_t first_image = unit / blocks * kLanes;
      const std::int64_t first = unit % blocks * most;
      const std::int64_t count = std::min(most, pixels - first);
      const float* const x = in + (first_image * shape.c * pixels + first * kLanes);
      find(x, shape.c, pixels * kLanes, count * kLanes, places);
      for (std::int64_t image = first_image; image < std::min(shape.n, first_image + kLanes); ++image) {
        const std::int32_t* const own = places + (image - first_image);
        for (std::int64_t p = 0; p < count; ++p) store_integer(out, image * pixels + first + p, own[p * kLanes]);
      }
    }
  });
}

void ArgExtreme::find(const float* x, std::int64_t count, std::int64_t stride, std::int64_t lanes,
                      std::int32_t* places) const {
  kernels_.extremes_of_lanes({.x = x,
                              .count = count,
                              .stride = stride,
                              .lanes = static_cast<int>(lanes),
                              .is_least = is_least_,
                              .takes_last = takes_last_,
                              .out = places});
}

}  // namespace sift::cpu
