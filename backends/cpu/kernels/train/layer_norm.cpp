#include "train/layer_norm.h"

#include <algorithm>
#include <stdexcept>

#include "base/aligned_buffer.h"
#include "base/cache.h"
#include "base/thread_pool.h"
#include "train/lane_runs.h"

namespace sift::cpu {
namespace {

void check_matrix(const Shape& shape) {
  if (shape.h != 1 || shape.w != 1) {
    throw std::invalid_argument("layer normalization: the shape must be (tokens, channels, 1, 1)");
  }
  if (shape.c == 0) throw std::invalid_argument("layer normalization: a token has no channels");
}

// Groups of tokens whose sums are added up one after the other. There are as many parts for any number of threads.
struct Parts {
  static constexpr std::int64_t kMost = 64;
  static constexpr std::int64_t kGroups = 8;

  std::int64_t groups;
  std::int64_t count;

  explicit Parts(std::int64_t of) : groups(of), count(std::clamp<std::int64_t>(ceil_div(of, kGroups), 1, kMost)) {}
  std::int64_t begin(std::int64_t part) const { return groups * part / count; }
};

// What is between a channel's sums of lanes, [2][16], and the next channel's.
constexpr std::int64_t kSumFloats = 2 * kLanes;

void add_parts(ThreadPool& pool, const float* sums, std::int64_t parts, std::int64_t channels, float* dweight,
               float* dbias) {
  constexpr std::int64_t kTogether = 16;
  pool.parallel_for(ceil_div(channels, kTogether), [&](std::int64_t task) {
    for (std::int64_t c = task * kTogether; c < std::min(channels, (task + 1) * kTogether); ++c) {
      double lanes[kSumFloats]{};
      for (std::int64_t part = 0; part < parts; ++part) {
        const float* const from = sums + (part * channels + c) * kSumFloats;
        for (std::int64_t i = 0; i < kSumFloats; ++i) lanes[i] += static_cast<double>(from[i]);
      }
      const auto total = [](const double* of) {
        double sum = 0;
        for (std::int64_t lane = 0; lane < kLanes; ++lane) sum += of[lane];
        return static_cast<float>(sum);
      };
      if (dweight != nullptr) dweight[c] = total(lanes);
      if (dbias != nullptr) dbias[c] = total(lanes + kLanes);
    }
  });
}

}  // namespace

void layer_norm_forward(ThreadPool& pool, const Shape& shape, const LayerNorm& args, const KernelTable& kernels) {
  check_matrix(shape);
  const LaneRuns runs(shape);
  const bool non_temporal = stores_non_temporally(element_count(shape, Layout::nchw_n16), args.out, args.x);
  pool.parallel_for(runs.groups(), [&](std::int64_t group) {
    const std::int64_t at = runs.start(group, 0);
    kernels.lanes.layer_norm({.x = args.x + at,
                              .weight = args.weight,
                              .bias = args.bias,
                              .out = args.out + at,
                              .mean = from(args.mean, group * kLanes),
                              .inverse_std = args.inverse_std + group * kLanes,
                              .channels = shape.c,
                              .lanes = runs.lanes(group),
                              .epsilon = args.epsilon,
                              .non_temporal = non_temporal});
    if (non_temporal) kernels.end_non_temporal_stores();
  });
}

void layer_norm_backward(ThreadPool& pool, const Shape& shape, const LayerNormGradient& args,
                         const KernelTable& kernels) {
  check_matrix(shape);
  const LaneRuns runs(shape);
  const bool non_temporal =
      stores_non_temporally(element_count(shape, Layout::nchw_n16), args.dx, args.dy) && args.dx != args.x;
  const bool sums_wanted = args.dweight != nullptr || args.dbias != nullptr;
  const Parts parts(runs.groups());
  const std::int64_t part_floats = shape.c * kSumFloats;
  static thread_local AlignedBuffer buffer;
  float* const sums = sums_wanted ? buffer.floats(static_cast<std::size_t>(parts.count * part_floats)) : nullptr;
  pool.parallel_for(parts.count, [&](std::int64_t part) {
    float* const of_part = from(sums, part * part_floats);
    if (sums_wanted) std::fill_n(of_part, part_floats, 0.0F);
    for (std::int64_t group = parts.begin(part); group < parts.begin(part + 1); ++group) {
      const std::int64_t at = runs.start(group, 0);
      kernels.lanes.layer_norm_gradient({.dy = args.dy + at,
                                         .x = args.x + at,
                                         .weight = args.weight,
                                         .mean = from(args.mean, group * kLanes),
                                         .inverse_std = args.inverse_std + group * kLanes,
                                         .dx = args.dx + at,
                                         .sums = of_part,
                                         .channels = shape.c,
                                         .lanes = runs.lanes(group),
                                         .non_temporal = non_temporal});
    }
    if (non_temporal) kernels.end_non_temporal_stores();
  });
  if (sums_wanted) add_parts(pool, sums, parts.count, shape.c, args.dweight, args.dbias);
}

}  // namespace sift::cpu
