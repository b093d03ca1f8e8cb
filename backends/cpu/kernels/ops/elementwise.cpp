#include "ops/elementwise.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/thread_pool.h"

namespace sift::cpu {

void Elementwise::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  const float* const second = others.second;
  if (kind_ != BinaryKind::first && second == nullptr) {
    throw std::invalid_argument("elementwise: the second operand is missing");
  }
  const std::int64_t count = element_count(shape, layout_);
  constexpr std::int64_t kPiece = 16384;  // floats: enough to be worth a thread, little enough to balance
  pool.parallel_for((count + kPiece - 1) / kPiece, [&](std::int64_t piece) {
    const std::int64_t first = piece * kPiece;
    kernels_.elementwise({.kind = kind_,
                          .a = in + first,
                          .b = kind_ == BinaryKind::first ? nullptr : second + first,
                          .scale = 1,
                          .shift = 0,
                          .out = out + first,
                          .count = std::min(kPiece, count - first),
                          .activation = activation_});
  });
}

ChannelScale::ChannelScale(std::vector<float> scale, std::vector<float> shift, Activation activation, Layout layout,
                           const KernelTable& kernels)
    : scale_(std::move(scale)), shift_(std::move(shift)), activation_(activation), layout_(layout), kernels_(kernels) {
  if (scale_.size() != shift_.size()) throw std::invalid_argument("channel scale: one shift per scale");
}

Shape ChannelScale::output_shape(const Shape& in) const {
  if (in.c != static_cast<std::int64_t>(scale_.size())) {
    throw std::invalid_argument("channel scale: the input does not have one channel per scale");
  }
  return in;
}

void ChannelScale::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  output_shape(shape);
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t units = nchw ? shape.n : (shape.n + kLanes - 1) / kLanes;
  const std::int64_t plane = shape.h * shape.w * (nchw ? 1 : kLanes);
  pool.parallel_for(units * shape.c, [&](std::int64_t task) {
    const auto channel = static_cast<std::size_t>(task % shape.c);
    kernels_.elementwise({.kind = BinaryKind::first,
                          .a = in + task * plane,
                          .b = nullptr,
                          .scale = scale_[channel],
                          .shift = shift_[channel],
                          .out = out + task * plane,
                          .count = plane,
                          .activation = activation_});
  });
}

}  // namespace sift::cpu
