#include "ops/softmax.h"

#include <algorithm>

#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// Values that are worth a thread.
constexpr std::int64_t kTaskFloats = 4096;

}  // namespace

void Softmax::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  if (element_count(shape, layout_) == 0) return;
  if (layout_ == Layout::nchw_n16 || shape.h * shape.w > 1) return run_pixels(pool, shape, in, out);
  const std::int64_t together = ceil_div(kTaskFloats, shape.c);
  pool.parallel_for(ceil_div(shape.n, together), [&](std::int64_t task) {
    for (std::int64_t row = task * together; row < std::min(shape.n, (task + 1) * together); ++row) {
      kernels_.softmax_row({.x = in + row * shape.c,
                            .out = out + row * shape.c,
                            .count = shape.c,
                            .stride = 1,
                            .lanes = 1,
                            .is_log = is_log_});
    }
  });
}

// Lanes hold images, or pixels of one.
void Softmax::run_pixels(ThreadPool& pool, const Shape& shape, const float* in, float* out) const {
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t pixels = shape.h * shape.w;
  const std::int64_t stride = pixels * (nchw ? 1 : kLanes);
  const std::int64_t blocks = nchw ? ceil_div(pixels, kLanes) : pixels;
  const std::int64_t units = (nchw ? shape.n : ceil_div(shape.n, kLanes)) * blocks;
  const std::int64_t together = ceil_div(kTaskFloats, shape.c * kLanes);
  pool.parallel_for(ceil_div(units, together), [&](std::int64_t task) {
    for (std::int64_t unit = task * together; unit < std::min(units, (task + 1) * together); ++unit) {
      const std::int64_t block = unit % blocks;
      const std::int64_t at = unit / blocks * shape.c * stride + block * kLanes;
      const std::int64_t lanes = nchw ? std::min(kLanes, pixels - block * kLanes) : kLanes;
      kernels_.softmax_lanes({.x = in + at,
                              .out = out + at,
                              .count = shape.c,
                              .stride = stride,
                              .lanes = static_cast<int>(lanes),
                              .is_log = is_log_});
    }
  });
}

}  // namespace sift::cpu
