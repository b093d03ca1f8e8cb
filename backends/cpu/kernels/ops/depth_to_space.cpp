#include "ops/depth_to_space.h"

#include <cstring>
#include <stdexcept>

#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// Every `step`-th pixel of a row of the result.
template <std::int64_t Lanes>
void spread_row(const float* from, std::int64_t pixels, std::int64_t step, float* to) {
  for (std::int64_t x = 0; x < pixels; ++x) std::memcpy(to + x * step * Lanes, from + x * Lanes, Lanes * sizeof *to);
}

}  // namespace

DepthToSpace::DepthToSpace(std::int64_t block_h, std::int64_t block_w, bool depth_first, Layout layout)
    : block_h_(block_h), block_w_(block_w), depth_first_(depth_first), layout_(layout) {
  if (block_h < 1 || block_w < 1 || block_h > kMostElements / block_w) {
    throw std::invalid_argument("depth to space: a block has at least one pixel");
  }
}

Shape DepthToSpace::output_shape(const Shape& in) const {
  if (in.c % (block_h_ * block_w_) != 0) {
    throw std::invalid_argument("depth to space: the channels do not fill whole blocks");
  }
  return {in.n, in.c / (block_h_ * block_w_), in.h * block_h_, in.w * block_w_};
}

void DepthToSpace::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const Shape made = output_shape(shape);
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t lanes = nchw ? 1 : kLanes;
  const std::int64_t units = nchw ? shape.n : ceil_div(shape.n, kLanes);
  const std::int64_t plane = shape.h * shape.w * lanes;
  pool.parallel_for(units * made.c, [&](std::int64_t task) {
    const std::int64_t unit = task / made.c;
    const std::int64_t c = task % made.c;
    for (std::int64_t i = 0; i < block_h_; ++i) {
      for (std::int64_t j = 0; j < block_w_; ++j) {
        const std::int64_t channel = depth_first_ ? (i * block_w_ + j) * made.c + c : (c * block_h_ + i) * block_w_ + j;
        const float* const from = in + (unit * shape.c + channel) * plane;
        float* const to = out + ((task * made.h + i) * made.w + j) * lanes;
        for (std::int64_t y = 0; y < shape.h; ++y) {
          const float* const row = from + y * shape.w * lanes;
          float* const at = to + y * block_h_ * made.w * lanes;
          nchw ? spread_row<1>(row, shape.w, block_w_, at) : spread_row<kLanes>(row, shape.w, block_w_, at);
        }
      }
    }
  });
}

}  // namespace sift::cpu
