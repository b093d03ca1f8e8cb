#include "ops/normalize.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"

namespace sift::cpu {

LayerNormalization::LayerNormalization(std::vector<float> scale, std::vector<float> shift, float epsilon,
                                       bool is_centered, Layout layout, const KernelTable& kernels, float least)
    : scale_(std::move(scale)),
      shift_(std::move(shift)),
      epsilon_(epsilon),
      is_centered_(is_centered),
      layout_(layout),
      kernels_(kernels),
      least_(least) {
  if (scale_.empty() || scale_.size() != shift_.size()) {
    throw std::invalid_argument("layer normalization: one scale and one shift per channel");
  }
}

Shape LayerNormalization::output_shape(const Shape& in) const {
  if (in.c != static_cast<std::int64_t>(scale_.size()) || in.h < 0 || in.w < 0) {
    throw std::invalid_argument("layer normalization: the input must have the channels of the scale");
  }
  return in;
}

void LayerNormalization::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  output_shape(shape);
  if (shape.h * shape.w != 1) {
    run_pixels(pool, shape, in, out);
    return;
  }
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t units = nchw ? shape.n : ceil_div(shape.n, kLanes);
  const std::int64_t size = shape.c * (nchw ? 1 : kLanes);
  pool.parallel_for(units, [&](std::int64_t unit) {
    (nchw ? kernels_.normalize_row : kernels_.normalize_lanes)({.x = in + unit * size,
                                                                .out = out + unit * size,
                                                                .scale = scale_.data(),
                                                                .shift = shift_.data(),
                                                                .channels = shape.c,
                                                                .stride = kLanes,
                                                                .out_stride = kLanes,
                                                                .epsilon = epsilon_,
                                                                .least = least_,
                                                                .is_centered = is_centered_});
  });
}

// Sixteen pixels of an image, or a pixel of sixteen images, at a time.
void LayerNormalization::run_pixels(ThreadPool& pool, const Shape& shape, const float* in, float* out) const {
  constexpr std::int64_t kBlocksOfTask = 4;
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t units = nchw ? shape.n : ceil_div(shape.n, kLanes);
  const std::int64_t pixels = shape.h * shape.w;
  const std::int64_t stride = pixels * (nchw ? 1 : kLanes);  // of a channel
  const std::int64_t blocks = ceil_div(stride, kLanes);
  const std::int64_t tasks = ceil_div(blocks, kBlocksOfTask);
  pool.parallel_for(units * tasks, [&](std::int64_t task) {
    static thread_local AlignedBuffer buffer;
    // Channels of large images are a power of two apart, often, and would leave the first-level cache between passes.
    float* const read = buffer.floats(static_cast<std::size_t>(2 * shape.c * kLanes));
    float* const made = read + shape.c * kLanes;
    const std::int64_t unit = task / tasks * shape.c * stride;
    const std::int64_t first = task % tasks * kBlocksOfTask;
    for (std::int64_t block = first; block < std::min(first + kBlocksOfTask, blocks); ++block) {
      const float* const x = in + unit + block * kLanes;
      float* const result = out + unit + block * kLanes;
      const std::int64_t lanes = std::min(stride - block * kLanes, kLanes);
      const bool is_whole = lanes == kLanes;
      for (std::int64_t c = 0; c < shape.c; ++c) {
        if (is_whole) {
          std::copy_n(x + c * stride, kLanes, read + c * kLanes);
        } else {
          std::fill_n(std::copy_n(x + c * stride, lanes, read + c * kLanes), kLanes - lanes, 0.0F);
        }
      }
      kernels_.normalize_lanes({.x = read,
                                .out = is_whole ? result : made,
                                .scale = scale_.data(),
                                .shift = shift_.data(),
                                .channels = shape.c,
                                .stride = kLanes,
                                .out_stride = is_whole ? stride : kLanes,
                                .epsilon = epsilon_,
                                .least = least_,
                                .is_centered = is_centered_});
      for (std::int64_t c = 0; c < (is_whole ? 0 : shape.c); ++c) {
        std::copy_n(made + c * kLanes, lanes, result + c * stride);
      }
    }
  });
}

GroupNormalization::GroupNormalization(std::vector<float> scale, std::vector<float> shift, std::int64_t groups,
                                       float epsilon, Layout layout, const KernelTable& kernels)
    : scale_(std::move(scale)),
      shift_(std::move(shift)),
      groups_(groups),
      epsilon_(epsilon),
      layout_(layout),
      kernels_(kernels) {
  const auto channels = static_cast<std::int64_t>(scale_.size());
  if (scale_.size() != shift_.size() || groups < 1 || channels < 1 || channels % groups != 0) {
    throw std::invalid_argument("group normalization: one scale and one shift per channel, in groups of one size");
  }
}

Shape GroupNormalization::output_shape(const Shape& in) const {
  if (in.c != static_cast<std::int64_t>(scale_.size())) {
    throw std::invalid_argument("group normalization: the input does not have one channel per scale");
  }
  return in;
}

void GroupNormalization::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  output_shape(shape);
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t units = nchw ? shape.n : ceil_div(shape.n, kLanes);
  const std::int64_t pixels = shape.h * shape.w;
  const std::int64_t channels = shape.c / groups_;
  const std::int64_t size = channels * pixels * (nchw ? 1 : kLanes);
  if (size == 0) return;
  pool.parallel_for(units * groups_, [&](std::int64_t task) {
    // A group is a row, whose elements have the scales and shifts of their channels.
    static thread_local std::vector<float> elements;
    elements.resize(static_cast<std::size_t>(2 * channels * pixels));
    float* const scale = elements.data();
    float* const shift = scale + channels * pixels;
    for (std::int64_t i = 0; i < channels; ++i) {
      const auto channel = static_cast<std::size_t>(task % groups_ * channels + i);
      std::fill_n(scale + i * pixels, pixels, scale_[channel]);
      std::fill_n(shift + i * pixels, pixels, shift_[channel]);
    }
    (nchw ? kernels_.normalize_row : kernels_.normalize_lanes)({.x = in + task * size,
                                                                .out = out + task * size,
                                                                .scale = scale,
                                                                .shift = shift,
                                                                .channels = channels * pixels,
                                                                .stride = kLanes,
                                                                .out_stride = kLanes,
                                                                .epsilon = epsilon_,
                                                                .least = 0,
                                                                .is_centered = true});
  });
}

}  // namespace sift::cpu
