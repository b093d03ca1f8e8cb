#include "ops/global_pool.h"

#include <vector>

#include "base/thread_pool.h"

namespace sift::cpu {

void GlobalAveragePool::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const std::int64_t pixels = shape.h * shape.w;
  // The mean of nothing is zero, as in onnxruntime.
  const float scale = sums_ || pixels == 0 ? 1.0F : 1.0F / static_cast<float>(pixels);
  if (layout_ == Layout::nchw_n16) {
    const std::int64_t units = (shape.n + kLanes - 1) / kLanes;
    std::vector<std::ptrdiff_t> taps(static_cast<std::size_t>(pixels));
    for (std::int64_t pixel = 0; pixel < pixels; ++pixel) taps[static_cast<std::size_t>(pixel)] = pixel * kLanes;
    pool.parallel_for(units * shape.c, [&](std::int64_t task) {
      WindowArgs args{};
      args.rows = 1;
      args.in = in + task * pixels * kLanes;
      args.taps = taps.data();
      args.tap_count = static_cast<std::uint32_t>(pixels);
      args.scale = scale;
      args.out = out + task * kLanes;
      args.out_step = kLanes;
      args.blocks = 1;
      args.lanes = args.last_lanes = kLanes;
      kernels_.window(WindowKind::sum, args);
    });
    return;
  }
  pool.parallel_for(shape.n * shape.c, [&](std::int64_t task) {
    const float* const plane = in + task * pixels;
    // Eight sums: one would add in sequence, and lose accuracy on large planes.
    float sums[8]{};
    std::int64_t pixel = 0;
    for (; pixel + 8 <= pixels; pixel += 8) {
      for (int i = 0; i < 8; ++i) sums[i] += plane[pixel + i];
    }
    for (; pixel < pixels; ++pixel) sums[pixel % 8] += plane[pixel];
    float sum = 0;
    for (const float part : sums) sum += part;
    out[task] = sum * scale;
  });
}

}  // namespace sift::cpu
