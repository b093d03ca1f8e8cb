#include "conv/subsample.h"

#include <algorithm>

#include "base/thread_pool.h"

namespace sift::cpu {

void subsample(ThreadPool& pool, const Shape& in_shape, const Shape& out_shape, std::int64_t stride_h,
               std::int64_t stride_w, const float* in, float* out) {
  constexpr std::int64_t kTogether = 16;  // planes that are worth a thread's turn
  const std::int64_t planes = in_shape.n * in_shape.c;
  pool.parallel_for((planes + kTogether - 1) / kTogether, [&](std::int64_t task) {
    const std::int64_t end = std::min(planes, (task + 1) * kTogether);
    for (std::int64_t plane = task * kTogether; plane < end; ++plane) {
      for (std::int64_t y = 0; y < out_shape.h; ++y) {
        const float* const from = in + (plane * in_shape.h + y * stride_h) * in_shape.w;
        float* const to = out + (plane * out_shape.h + y) * out_shape.w;
        // A stride known to the compiler becomes shuffles; nearly all networks have this one.
        if (stride_w == 2) {
          for (std::int64_t x = 0; x < out_shape.w; ++x) to[x] = from[2 * x];
        } else {
          for (std::int64_t x = 0; x < out_shape.w; ++x) to[x] = from[stride_w * x];
        }
      }
    }
  });
}

}  // namespace sift::cpu
