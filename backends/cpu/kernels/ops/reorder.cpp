#include "ops/reorder.h"

#include <algorithm>
#include <cstdint>

#include "base/cache.h"
#include "base/thread_pool.h"

namespace sift::cpu {

void Reorder::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const std::int64_t image = shape.c * shape.h * shape.w;
  const std::int64_t groups = (shape.n + kLanes - 1) / kLanes;
  // A multiple of 16, so that pieces begin at whole vectors; large enough to be worth a thread.
  constexpr std::int64_t kPiece = 4096;
  const std::int64_t pieces = (image + kPiece - 1) / kPiece;
  const bool aligned = from_ == Layout::nchw ||
                       (image % kLanes == 0 && reinterpret_cast<std::uintptr_t>(out) % (kLanes * sizeof(float)) == 0);
  const bool non_temporal = aligned && exceeds_caches(groups * kLanes * image);
  pool.parallel_for(groups * pieces, [&](std::int64_t task) {
    const std::int64_t group = task / pieces;
    const std::int64_t first = task % pieces * kPiece;
    const std::int64_t count = std::min(kPiece, image - first);
    const int rows = static_cast<int>(std::min(kLanes, shape.n - group * kLanes));
    const std::int64_t plane_at = group * kLanes * image + first;
    const std::int64_t block_at = (group * image + first) * kLanes;
    if (from_ == Layout::nchw) {
      kernels_.interleave(in + plane_at, image, count, rows, out + block_at, non_temporal);
    } else {
      kernels_.deinterleave(in + block_at, image, count, rows, out + plane_at, non_temporal);
    }
    if (non_temporal) kernels_.end_non_temporal_stores();
  });
}

}  // namespace sift::cpu
