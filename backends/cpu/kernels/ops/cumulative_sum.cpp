#include "ops/cumulative_sum.h"

#include <algorithm>

#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// Values that are worth a thread, and adjacent ones that are summed together: a multiple of the lanes.
constexpr std::int64_t kTaskFloats = 4096;
constexpr std::int64_t kTogether = 256;
static_assert(kTogether % kLanes == 0);

}  // namespace

void CumulativeSum::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  if (element_count(shape, layout_) == 0) return;
  const bool nchw = layout_ == Layout::nchw;
  // Adjacent values of one channel.
  const std::int64_t width = shape.h * shape.w * (nchw ? 1 : kLanes);
  const std::int64_t blocks = ceil_div(width, kTogether);
  const std::int64_t units = (nchw ? shape.n : ceil_div(shape.n, kLanes)) * blocks;
  const std::int64_t together = ceil_div(kTaskFloats, shape.c * std::min(width, kTogether));
  pool.parallel_for(ceil_div(units, together), [&](std::int64_t task) {
    for (std::int64_t unit = task * together; unit < std::min(units, (task + 1) * together); ++unit) {
      const std::int64_t first = unit % blocks * kTogether;
      const std::int64_t count = std::min(kTogether, width - first);
      // Sums in lanes past the last image would not stay finite: there are none.
      const std::int64_t images = nchw ? kLanes : std::min(kLanes, shape.n - unit / blocks * kLanes);
      float sums[kTogether] = {};
      float kept[kTogether];
      for (std::int64_t i = 0; i < count; ++i) kept[i] = i % kLanes < images ? 1.0F : 0.0F;
      for (std::int64_t i = 0; i < shape.c; ++i) {
        const std::int64_t channel = is_reversed_ ? shape.c - 1 - i : i;
        const std::int64_t at = (unit / blocks * shape.c + channel) * width + first;
        for (std::int64_t j = 0; j < count; ++j) {
          const float sum = kept[j] != 0 ? sums[j] + in[at + j] : 0.0F;
          out[at + j] = is_exclusive_ ? sums[j] : sum;
          sums[j] = sum;
        }
      }
    }
  });
}

}  // namespace sift::cpu
