#include "train/max_pool.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/cache.h"
#include "train/window_rows.h"

namespace sift::cpu {
void check_taps(const ConvGeometry& geometry) {
  const std::int64_t taps = geometry.kernel_h * geometry.kernel_w;
  if (taps > kNoTap) {
    throw std::invalid_argument("max pooling: the kernel has " + std::to_string(taps) + " taps; at most " +
                                std::to_string(kNoTap) + " are supported in training");
  }
}

TrainablePool::TrainablePool(const ConvGeometry& geometry) : geometry_(geometry) { check_taps(geometry); }

Shape TrainablePool::output_shape(const Shape& in) const { return pooled_shape(geometry_, in); }

void TrainablePool::forward(ThreadPool& pool, const Shape& shape, const float* x, float* out, std::uint8_t* taps,
                            const KernelTable& kernels) const {
  const Shape to = output_shape(shape);
  const std::int64_t floats = element_count(to, Layout::nchw_n16);
  if (floats == 0) return;
  const WindowRows windows = WindowRows::of_outputs(geometry_, shape, to);
  // The first row of the input after those of an output row.
  const auto end_of_window = [&](std::int64_t y) {
    const ConvGeometry& g = geometry_;
    const std::int64_t end = y * g.stride_h - g.pad_top + (g.kernel_h - 1) * g.dilation_h + 1;
    return std::clamp<std::int64_t>(end, 0, shape.h);
  };
  for_each_row(pool, to, windows, exceeds_caches(floats), kernels,
               [&](std::int64_t plane, std::int64_t y, const PoolRow& row) {
                 const std::int64_t at = plane * plane_floats(to) + y * to.w * kLanes;
                 const float* const input = x + plane * plane_floats(shape);
                 const std::int64_t known = end_of_window(y);
                 kernels.lanes.max_pool({.row = row,
                                         .x = input,
                                         .out = out + at,
                                         .taps = taps + at,
                                         .ahead = input + known * shape.w * kLanes,
                                         .ahead_blocks = (end_of_window(y + 1) - known) * shape.w});
               });
}

void TrainablePool::backward(ThreadPool& pool, const Shape& shape, const float* dy, const std::uint8_t* taps, float* dx,
                             const KernelTable& kernels) const {
  const Shape from = output_shape(shape);
  const std::int64_t floats = element_count(shape, Layout::nchw_n16);
  if (floats == 0) return;
  const WindowRows windows = WindowRows::of_inputs(geometry_, shape, from);
  for_each_row(pool, shape, windows, exceeds_caches(floats), kernels,
               [&](std::int64_t plane, std::int64_t y, const PoolRow& row) {
                 const std::int64_t start = plane * plane_floats(from);
                 kernels.lanes.max_pool_gradient({.row = row,
                                                  .dy = dy + start,
                                                  .taps = taps + start,
                                                  .dx = dx + plane * plane_floats(shape) + y * shape.w * kLanes});
               });
}

}  // namespace sift::cpu
