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
                          .repeats_b = false,
                          .scale = 1,
                          .shift = 0,
                          .out = out + first,
                          .count = std::min(kPiece, count - first),
                          .activation = activation_});
  });
}

ChannelCombine::ChannelCombine(BinaryKind kind, Activation activation, Layout layout, const KernelTable& kernels)
    : kind_(kind), activation_(activation), layout_(layout), kernels_(kernels) {
  if (kind == BinaryKind::first) throw std::invalid_argument("channel combine: it has two operands");
}

OtherSizes ChannelCombine::other_sizes(const Shape& in) const {
  return {.second = element_count({in.n, in.c, 1, 1}, layout_)};
}

void ChannelCombine::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others,
                         float* out) const {
  const float* const second = others.second;
  if (second == nullptr) throw std::invalid_argument("channel combine: the second operand is missing");
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t units = nchw ? shape.n : ceil_div(shape.n, kLanes);
  const std::int64_t plane = shape.h * shape.w * (nchw ? 1 : kLanes);
  constexpr std::int64_t kPiece = 16384;  // floats, as above
  const std::int64_t together = std::max<std::int64_t>(kPiece / std::max<std::int64_t>(plane, 1), 1);
  const std::int64_t planes = units * shape.c;
  pool.parallel_for(ceil_div(planes, together), [&](std::int64_t task) {
    const std::int64_t end = std::min(planes, (task + 1) * together);
    for (std::int64_t at = task * together; at < end; ++at) {
      ElementwiseArgs args{.kind = kind_,
                           .a = in + at * plane,
                           .b = second + at * kLanes,
                           .repeats_b = true,
                           .scale = 1,
                           .shift = 0,
                           .out = out + at * plane,
                           .count = plane,
                           .activation = activation_};
      if (nchw) {
        const float value = second[at];
        args.kind = BinaryKind::first;
        args.b = nullptr;
        args.repeats_b = false;
        args.scale = kind_ == BinaryKind::multiply ? value : 1;
        args.shift = kind_ == BinaryKind::multiply ? 0 : kind_ == BinaryKind::add ? value : -value;
      }
      kernels_.elementwise(args);
    }
  });
}

ChannelScale::ChannelScale(std::vector<float> scale, std::vector<float> shift, std::vector<float> slopes,
                           Activation activation, Layout layout, const KernelTable& kernels)
    : scale_(std::move(scale)),
      shift_(std::move(shift)),
      slopes_(std::move(slopes)),
      activation_(activation),
      layout_(layout),
      kernels_(kernels) {
  if (scale_.size() != shift_.size()) throw std::invalid_argument("channel scale: one shift per scale");
  if (!slopes_.empty() && (slopes_.size() != scale_.size() || activation.kind != ActivationKind::leaky)) {
    throw std::invalid_argument("channel scale: one slope per scale, of a leaky activation");
  }
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
  // As many channels as are worth a thread: of tokens, one has sixteen values.
  constexpr std::int64_t kPiece = 2048;
  const std::int64_t planes = units * shape.c;
  const std::int64_t together = std::max<std::int64_t>(kPiece / std::max<std::int64_t>(plane, 1), 1);
  pool.parallel_for(ceil_div(planes, together), [&](std::int64_t task) {
    for (std::int64_t at = task * together; at < std::min(planes, (task + 1) * together); ++at) {
      const auto channel = static_cast<std::size_t>(at % shape.c);
      Activation activation = activation_;
      if (!slopes_.empty()) activation.a = slopes_[channel];
      kernels_.elementwise({.kind = BinaryKind::first,
                            .a = in + at * plane,
                            .b = nullptr,
                            .repeats_b = false,
                            .scale = scale_[channel],
                            .shift = shift_[channel],
                            .out = out + at * plane,
                            .count = plane,
                            .activation = activation});
    }
  });
}

}  // namespace sift::cpu
