#include "ops/normalize.h"

#include <stdexcept>
#include <utility>

#include "base/thread_pool.h"

namespace sift::cpu {

LayerNormalization::LayerNormalization(std::vector<float> scale, std::vector<float> shift, float epsilon,
                                       bool is_centered, Layout layout, const KernelTable& kernels)
    : scale_(std::move(scale)),
      shift_(std::move(shift)),
      epsilon_(epsilon),
      is_centered_(is_centered),
      layout_(layout),
      kernels_(kernels) {
  if (scale_.empty() || scale_.size() != shift_.size()) {
    throw std::invalid_argument("layer normalization: one scale and one shift per channel");
  }
}

Shape LayerNormalization::output_shape(const Shape& in) const {
  if (in.c != static_cast<std::int64_t>(scale_.size()) || in.h != 1 || in.w != 1) {
    throw std::invalid_argument("layer normalization: the input must be [m][channels of the scale]");
  }
  return in;
}

void LayerNormalization::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  output_shape(shape);
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t units = nchw ? shape.n : (shape.n + kLanes - 1) / kLanes;
  const std::int64_t size = shape.c * (nchw ? 1 : kLanes);
  pool.parallel_for(units, [&](std::int64_t unit) {
    (nchw ? kernels_.normalize_row : kernels_.normalize_lanes)({.x = in + unit * size,
                                                                .out = out + unit * size,
                                                                .scale = scale_.data(),
                                                                .shift = shift_.data(),
                                                                .channels = shape.c,
                                                                .epsilon = epsilon_,
                                                                .is_centered = is_centered_});
  });
}

}  // namespace sift::cpu
