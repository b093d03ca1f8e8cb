#include "train/channel_sums.h"

#include <algorithm>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "train/lane_runs.h"

namespace sift::cpu {

void channel_sums(ThreadPool& pool, const Shape& shape, const float* x, float* sums, const KernelTable& kernels) {
  const LaneRuns runs(shape);
  // Channels that are summed together, so that what is read of a group is a few pages long.
  constexpr std::int64_t kBlocks = 128;
  const std::int64_t together = std::max<std::int64_t>(1, kBlocks / std::max<std::int64_t>(1, runs.blocks()));
  pool.parallel_for(ceil_div(shape.c, together), [&](std::int64_t task) {
    const std::int64_t first = task * together;
    const std::int64_t channels = std::min(together, shape.c - first);
    static thread_local AlignedBuffer buffer;
    const std::int64_t size = 2 * kLanes * channels;
    float* const parts = buffer.floats(static_cast<std::size_t>(size));
    std::fill_n(parts, size, 0.0F);
    for (std::int64_t group = 0; group < runs.groups(); ++group) {
      kernels.lanes.add_runs(x + runs.start(group, first), channels, runs.blocks(), runs.lanes(group), parts);
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (std::int64_t lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(parts[2 * kLanes * c + lane]);
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        sum -= static_cast<double>(parts[2 * kLanes * c + kLanes + lane]);
      }
      sums[first + c] = static_cast<float>(sum);
    }
  });
}

}  // namespace sift::cpu
