#include "train/batch_norm_pool.h"

#include <stdexcept>

#include "base/cache.h"
#include "base/thread_pool.h"
#include "train/lane_runs.h"
#include "train/max_pool.h"
#include "train/window_rows.h"

namespace sift::cpu {
namespace {

float scale_of(const float* weight, std::int64_t channel, float inverse_std) {
  return weight == nullptr ? inverse_std : weight[channel] * inverse_std;
}

}  // namespace

void batch_norm_pool_forward(ThreadPool& pool, const ConvGeometry& geometry, const Shape& shape,
                             const BatchNormPool& args, const float* epsilon, const BatchStatistics& statistics,
                             const KernelTable& kernels) {
  check_taps(geometry);
  const Shape to = pooled_shape(geometry, shape);
  const LaneRuns in(shape);
  const LaneRuns out(to);
  if (element_count(shape, Layout::nchw_n16) == 0) {
    throw std::invalid_argument("batch normalization: a channel has no values");
  }
  const WindowRows windows = WindowRows::of_outputs(geometry, shape, to);
  if (!windows.all_joined()) throw std::invalid_argument("max pooling: a window has no pixels");
  const bool non_temporal = exceeds_caches(element_count(to, Layout::nchw_n16));
  pool.parallel_for(shape.c, [&](std::int64_t channel) {
    if (epsilon != nullptr) compute_statistics(shape, channel, args.x, *epsilon, statistics, kernels);
    const float mean = statistics.mean[channel];
    const float scale = scale_of(args.weight, channel, statistics.inverse_std[channel]);
    for (std::int64_t group = 0; group < in.groups(); ++group) {
      for (std::int64_t y = 0; y < to.h; ++y) {
        const std::int64_t at = out.start(group, channel) + y * to.w * kLanes;
        kernels.lanes.batch_norm_pool({.row = windows.row(y, non_temporal),
                                       .x = args.x + in.start(group, channel),
                                       .mean = mean,
                                       .scale = scale,
                                       .shift = args.bias == nullptr ? 0.0F : args.bias[channel],
                                       .relu = args.relu,
                                       .of_batch = epsilon != nullptr,
                                       .out = args.out + at,
                                       .chosen = args.chosen + at,
                                       .taps = args.taps + at});
      }
    }
    if (non_temporal) kernels.end_non_temporal_stores();
  });
}

void batch_norm_pool_backward(ThreadPool& pool, const ConvGeometry& geometry, const Shape& shape,
                              const BatchNormPoolGradient& args, const KernelTable& kernels) {
  check_taps(geometry);
  const Shape from = pooled_shape(geometry, shape);
  const std::int64_t floats = element_count(shape, Layout::nchw_n16);
  if (floats == 0) throw std::invalid_argument("batch normalization: a channel has no values");
  const WindowRows windows = WindowRows::of_inputs(geometry, shape, from);
  const LaneRuns in(shape);
  const LaneRuns out(from);
  const bool non_temporal = exceeds_caches(floats);
  const double count = static_cast<double>(shape.n) * static_cast<double>(in.blocks());
  pool.parallel_for(shape.c, [&](std::int64_t channel) {
    const float mean = args.mean[channel];
    const float scale = scale_of(args.weight, channel, args.inverse_std[channel]);
    // Each dy goes to one pixel, whose x is known: the sums are over the output.
    GradientSums sums;
    for (std::int64_t group = 0; group < out.groups(); ++group) {
      const std::int64_t at = out.start(group, channel);
      kernels.lanes.batch_norm_sums({.dy = args.dy + at,
                                     .x = args.chosen + at,
                                     .out = nullptr,
                                     .blocks = out.blocks(),
                                     .lanes = out.lanes(group),
                                     .relu = args.relu ? ReluMask::from_x : ReluMask::none,
                                     .mean = mean,
                                     .scale = scale,
                                     .shift = args.bias == nullptr ? 0.0F : args.bias[channel],
                                     .dz_mean = 0,
                                     .slope = 0,
                                     .dx = nullptr,
                                     .dresidual = nullptr,
                                     .non_temporal = false},
                                    sums);
    }
    const auto inverse_std = static_cast<double>(args.inverse_std[channel]);
    args.dweight[channel] = static_cast<float>(sums.dz_x * inverse_std);
    args.dbias[channel] = static_cast<float>(sums.dz);
    const double share = args.of_batch ? 1 / count : 0;
    for (std::int64_t group = 0; group < in.groups(); ++group) {
      for (std::int64_t y = 0; y < shape.h; ++y) {
        const std::int64_t at = in.start(group, channel) + y * shape.w * kLanes;
        kernels.lanes.batch_norm_pool_gradient(
            {.row = windows.row(y, non_temporal),
             .dy = args.dy + out.start(group, channel),
             .taps = args.taps + out.start(group, channel),
             .x = args.x + at,
             .lanes = in.lanes(group),
             .mean = mean,
             .scale = scale,
             .dz_mean = static_cast<float>(sums.dz * share),
             .slope = static_cast<float>(sums.dz_x * share * inverse_std * inverse_std),
             .dx = args.dx + at});
      }
    }
    if (non_temporal) kernels.end_non_temporal_stores();
  });
}

}  // namespace sift::cpu
