#include "train/depthwise.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "base/aligned_buffer.h"
#include "base/cache.h"
#include "train/lane_runs.h"
#include "train/window_rows.h"

namespace sift::cpu {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("depthwise convolution: ") + what);
}

// Of each tap of an axis.
std::vector<DepthwiseReach> reaches(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                                    std::int64_t dilation, std::int64_t pad) {
  std::vector<DepthwiseReach> result;
  for (std::int64_t tap = 0; tap < kernel; ++tap) {
    const std::int64_t offset = tap * dilation - pad;  // of the input that the first output reads
    const std::int64_t first = std::clamp<std::int64_t>(offset < 0 ? ceil_div(-offset, stride) : 0, 0, out);
    const std::int64_t last = in > offset ? std::min(out, (in - offset - 1) / stride + 1) : 0;
    const std::int64_t count = std::max<std::int64_t>(last - first, 0);
    result.push_back({first, count, count == 0 ? 0 : first * stride + offset});
  }
  return result;
}

}  // namespace

DepthwiseConv::DepthwiseConv(std::int64_t rows, const ConvGeometry& geometry) : rows_(rows), geometry_(geometry) {
  require(geometry.groups > 0 && rows > 0 && rows % geometry.groups == 0, "rows must be a multiple of the groups");
  element_count({rows, 1, geometry.kernel_h, geometry.kernel_w}, Layout::nchw);  // throws
}

Shape DepthwiseConv::output_shape(const Shape& in) const {
  require(in.c == geometry_.groups, "as many channels as groups are needed");
  return {in.n, rows_, geometry_.output_h(in.h), geometry_.output_w(in.w)};
}

void DepthwiseConv::forward(ThreadPool& pool, const Shape& shape, const float* x, const float* weight,
                            const float* bias, float* out, const KernelTable& kernels) const {
  const Shape to = output_shape(shape);
  const std::int64_t floats = element_count(to, Layout::nchw_n16);
  if (floats == 0) return;
  const WindowRows windows = WindowRows::of_outputs(geometry_, shape, to);
  for_each_row(pool, to, windows, exceeds_caches(floats), kernels,
               [&](std::int64_t plane, std::int64_t y, const PoolRow& row) {
                 const std::int64_t channel = plane % rows_;
                 kernels.lanes.depthwise({.row = row,
                                          .x = x + plane / outputs() * plane_floats(shape),
                                          .weight = weight + channel * taps(),
                                          .bias = bias == nullptr ? 0 : bias[channel],
                                          .out = out + plane * plane_floats(to) + y * to.w * kLanes,
                                          .adds = false});
               });
}

void DepthwiseConv::input_gradient(ThreadPool& pool, const Shape& shape, const float* dy, const float* weight,
                                   float* dx, const KernelTable& kernels) const {
  const Shape from = output_shape(shape);
  const std::int64_t floats = element_count(shape, Layout::nchw_n16);
  if (floats == 0) return;
  const WindowRows windows = WindowRows::of_inputs(geometry_, shape, from);
  const bool non_temporal = outputs() == 1 && exceeds_caches(floats);  // sums of several are read again
  for_each_row(pool, shape, windows, non_temporal, kernels,
               [&](std::int64_t plane, std::int64_t y, const PoolRow& row) {
                 for (std::int64_t i = 0; i < outputs(); ++i) {
                   const std::int64_t output = plane * outputs() + i;
                   kernels.lanes.depthwise({.row = row,
                                            .x = dy + output * plane_floats(from),
                                            .weight = weight + output % rows_ * taps(),
                                            .bias = 0,
                                            .out = dx + plane * plane_floats(shape) + y * shape.w * kLanes,
                                            .adds = i > 0});
                 }
               });
}

void DepthwiseConv::weight_gradient(ThreadPool& pool, const Shape& shape, const float* x, const float* dy,
                                    float* dweight, const KernelTable& kernels) const {
  const ConvGeometry& g = geometry_;
  const Shape from = output_shape(shape);
  const std::vector<DepthwiseReach> rows = reaches(shape.h, from.h, g.kernel_h, g.stride_h, g.dilation_h, g.pad_top);
  const std::vector<DepthwiseReach> columns =
      reaches(shape.w, from.w, g.kernel_w, g.stride_w, g.dilation_w, g.pad_left);
  const LaneRuns inputs(shape);
  const LaneRuns gradients(from);
  pool.parallel_for(rows_, [&](std::int64_t row) {
    static thread_local AlignedBuffer buffer;
    const std::int64_t size = taps() * kLanes;
    float* const sums = buffer.floats(static_cast<std::size_t>(size));
    std::fill_n(sums, size, 0.0F);
    for (std::int64_t group = 0; group < inputs.groups(); ++group) {
      kernels.lanes.depthwise_gradient({.x = x + inputs.start(group, row / outputs()),
                                        .dy = dy + gradients.start(group, row),
                                        .rows = rows.data(),
                                        .columns = columns.data(),
                                        .kernel_h = g.kernel_h,
                                        .kernel_w = g.kernel_w,
                                        .stride_h = g.stride_h,
                                        .stride_w = g.stride_w,
                                        .x_pitch = shape.w * kLanes,
                                        .dy_pitch = from.w * kLanes,
                                        .sums = sums});
    }
    for (std::int64_t tap = 0; tap < taps(); ++tap) {
      double sum = 0;
      for (std::int64_t lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(sums[tap * kLanes + lane]);
      dweight[row * taps() + tap] = static_cast<float>(sum);
    }
  });
}

}  // namespace sift::cpu
