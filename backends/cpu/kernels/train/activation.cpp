#include "train/activation.h"

#include <algorithm>

#include "base/cache.h"
#include "base/thread_pool.h"
#include "train/lane_runs.h"

namespace sift::cpu {
namespace {

void run(ThreadPool& pool, std::int64_t floats, const LaneActivation& function, const float* x, const float* dy,
         float* out, const KernelTable& kernels) {
  constexpr std::int64_t kTogether = 1 << 14;
  const bool non_temporal = stores_non_temporally(floats, out, x) && out != dy;
  pool.parallel_for(ceil_div(floats, kTogether), [&](std::int64_t task) {
    const std::int64_t first = task * kTogether;
    kernels.lanes.activation({.function = function,
                              .x = x + first,
                              .dy = from(dy, first),
                              .out = out + first,
                              .count = std::min(kTogether, floats - first),
                              .non_temporal = non_temporal});
    if (non_temporal) kernels.end_non_temporal_stores();
  });
}

}  // namespace

void activation_forward(ThreadPool& pool, std::int64_t floats, const LaneActivation& function, const float* x,
                        float* out, const KernelTable& kernels) {
  run(pool, floats, function, x, nullptr, out, kernels);
}

void activation_backward(ThreadPool& pool, std::int64_t floats, const LaneActivation& function, const float* dy,
                         const float* x, float* dx, const KernelTable& kernels) {
  run(pool, floats, function, x, dy, dx, kernels);
}

}  // namespace sift::cpu
