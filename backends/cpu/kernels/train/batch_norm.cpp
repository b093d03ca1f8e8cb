#include "train/batch_norm.h"

#include <cmath>
#include <stdexcept>

#include "base/cache.h"
#include "base/thread_pool.h"
#include "train/lane_runs.h"

namespace sift::cpu {
namespace {

void apply_to_channel(const LaneRuns& runs, std::int64_t channel, const BatchNorm& args, float mean, float inverse_std,
                      bool non_temporal, const KernelTable& kernels) {
  for (std::int64_t group = 0; group < runs.groups(); ++group) {
    const std::int64_t at = runs.start(group, channel);
    kernels.lanes.batch_norm({.x = args.x + at,
                              .residual = from(args.residual, at),
                              .out = args.out + at,
                              .blocks = runs.blocks(),
                              .mean = mean,
                              .scale = args.weight == nullptr ? inverse_std : args.weight[channel] * inverse_std,
                              .shift = args.bias == nullptr ? 0.0F : args.bias[channel],
                              .relu = args.relu,
                              .non_temporal = non_temporal});
  }
  if (non_temporal) kernels.end_non_temporal_stores();
}

bool applies_non_temporally(const Shape& shape, const BatchNorm& args) {
  const std::int64_t floats = element_count(shape, Layout::nchw_n16);
  return stores_non_temporally(floats, args.out, args.x) && args.out != args.residual;
}

}  // namespace

void compute_statistics(const Shape& shape, std::int64_t channel, const float* x, float epsilon,
                        const BatchStatistics& statistics, const KernelTable& kernels) {
  const LaneRuns runs(shape);
  Moments moments;
  for (std::int64_t group = 0; group < runs.groups(); ++group) {
    kernels.lanes.add_moments(x + runs.start(group, channel), runs.blocks(), runs.lanes(group), moments);
  }
  const double variance = moments.squares / moments.count;
  statistics.mean[channel] = static_cast<float>(moments.mean);
  statistics.inverse_std[channel] = static_cast<float>(1 / std::sqrt(variance + static_cast<double>(epsilon)));
  if (statistics.variance != nullptr) statistics.variance[channel] = static_cast<float>(variance);
}

void batch_norm_forward(ThreadPool& pool, const Shape& shape, const BatchNorm& args, float epsilon,
                        const BatchStatistics& statistics, const KernelTable& kernels) {
  const LaneRuns runs(shape);
  if (shape.n * runs.blocks() == 0) throw std::invalid_argument("batch normalization: a channel has no values");
  const bool non_temporal = applies_non_temporally(shape, args);
  pool.parallel_for(shape.c, [&](std::int64_t channel) {
    compute_statistics(shape, channel, args.x, epsilon, statistics, kernels);
    apply_to_channel(runs, channel, args, statistics.mean[channel], statistics.inverse_std[channel], non_temporal,
                     kernels);
  });
}

void batch_norm_apply(ThreadPool& pool, const Shape& shape, const BatchNorm& args, const float* mean,
                      const float* inverse_std, const KernelTable& kernels) {
  const LaneRuns runs(shape);
  const bool non_temporal = applies_non_temporally(shape, args);
  pool.parallel_for(shape.c, [&](std::int64_t channel) {
    apply_to_channel(runs, channel, args, mean[channel], inverse_std[channel], non_temporal, kernels);
  });
}

void batch_norm_backward(ThreadPool& pool, const Shape& shape, const BatchNormGradient& args,
                         const KernelTable& kernels) {
  const LaneRuns runs(shape);
  const std::int64_t floats = element_count(shape, Layout::nchw_n16);
  const bool non_temporal =
      stores_non_temporally(floats, args.dx, args.dy) && args.dresidual != args.dy && args.dx != args.x;
  const double count = static_cast<double>(shape.n) * static_cast<double>(runs.blocks());
  pool.parallel_for(shape.c, [&](std::int64_t channel) {
    const auto inverse_std = static_cast<double>(args.inverse_std[channel]);
    BatchNormGradientArgs of_run{
        .dy = nullptr,
        .x = nullptr,
        .out = nullptr,
        .blocks = runs.blocks(),
        .lanes = 0,
        .relu = !args.relu            ? ReluMask::none
                : args.out == nullptr ? ReluMask::from_x
                                      : ReluMask::from_out,
        .mean = args.mean[channel],
        .scale = args.weight == nullptr ? args.inverse_std[channel] : args.weight[channel] * args.inverse_std[channel],
        .shift = args.bias == nullptr ? 0.0F : args.bias[channel],
        .dz_mean = 0,
        .slope = 0,
        .dx = nullptr,
        .dresidual = nullptr,
        .non_temporal = non_temporal};
    const auto place = [&](std::int64_t group) {
      const std::int64_t at = runs.start(group, channel);
      of_run.dy = args.dy + at;
      of_run.x = args.x + at;
      of_run.out = from(args.out, at);
      of_run.lanes = runs.lanes(group);
      of_run.dx = args.dx + at;
      of_run.dresidual = from(args.dresidual, at);
    };
    GradientSums sums;
    for (std::int64_t group = 0; group < runs.groups(); ++group) {
      place(group);
      kernels.lanes.batch_norm_sums(of_run, sums);
    }
    args.dweight[channel] = static_cast<float>(sums.dz_x * inverse_std);
    args.dbias[channel] = static_cast<float>(sums.dz);
    if (args.of_batch) {
      of_run.dz_mean = static_cast<float>(sums.dz / count);
      of_run.slope = static_cast<float>(sums.dz_x / count * inverse_std * inverse_std);
    }
    for (std::int64_t group = 0; group < runs.groups(); ++group) {
      place(group);
      kernels.lanes.batch_norm_gradient(of_run);
    }
    if (non_temporal) kernels.end_non_temporal_stores();
  });
}

}  // namespace sift::cpu
