#include "int8/positions.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <stdexcept>

namespace sift::cpu {
namespace {

// From one position to the next, without dividing for each.
struct Walk {
  Walk(const Shape& shape, std::int64_t position)
      : height(shape.h),
        width(shape.w),
        image(position / (shape.h * shape.w)),
        y(position / shape.w % shape.h),
        x(position % shape.w) {}

  void step() {
    if (++x < width) return;
    x = 0;
    if (++y < height) return;
    y = 0;
    ++image;
  }

  std::int64_t height;
  std::int64_t width;
  std::int64_t image;
  std::int64_t y;
  std::int64_t x;
};

}  // namespace

void check_positions(const Shape& shape) {
  // Half of what a word counts, so that a window may begin outside of an image.
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (position_count(shape) > kMost || shape.h > kMost || shape.w > kMost) {
    throw std::invalid_argument("quads: more than 2**30 positions");
  }
}

PlainBlock PlainPositions::block(std::int64_t number) {
  const std::int64_t pixels = shape_.h * shape_.w;
  const bool in_lanes = layout_ == Layout::nchw_n16;
  const std::int64_t first = number * kQuadBlock;
  const std::int64_t count = std::min(kQuadBlock, position_count(shape_) - first);
  const std::int64_t image = first / pixels;
  // Of one image, or sixteen images of one pixel in their lanes.
  const bool contiguous = in_lanes ? pixels == 1 : shape_.c == 1 || image == (first + count - 1) / pixels;
  if (contiguous) {
    const std::int64_t place = image * shape_.c * pixels + first % pixels;
    for (std::int64_t i = 0; i < count; ++i) lanes_[i] = place + i;
  } else {
    Walk walk(shape_, first);
    for (std::int64_t i = 0; i < count; ++i, walk.step()) {
      const std::int64_t pixel = walk.y * shape_.w + walk.x;
      lanes_[i] = in_lanes ? (walk.image / kLanes * shape_.c * pixels + pixel) * kLanes + walk.image % kLanes
                           : walk.image * shape_.c * pixels + pixel;
    }
  }
  return {.lanes = lanes_,
          .count = count,
          .contiguous = contiguous,
          .channel_stride = pixels * (in_lanes ? kLanes : 1),
          .channels = shape_.c};
}

void clear_idle_lanes(const Shape& shape, float* out) {
  const std::int64_t used = shape.n % kLanes;
  if (used == 0) return;
  const std::int64_t vectors = shape.c * shape.h * shape.w;
  float* const last = out + shape.n / kLanes * vectors * kLanes;
  for (std::int64_t i = 0; i < vectors; ++i) std::fill(last + i * kLanes + used, last + (i + 1) * kLanes, 0.0F);
}

WindowReader::WindowReader(const ConvGeometry& geometry, const Shape& in, const Shape& out)
    : geometry_(geometry), in_(in), out_(out) {
  const ConvGeometry& g = geometry;
  constexpr std::int64_t kMost = std::int64_t{1} << 28;
  check_positions(in);
  check_positions(out);
  for (const std::int64_t size :
       {(g.kernel_h - 1) * g.dilation_h, (g.kernel_w - 1) * g.dilation_w, std::abs(g.pad_top), std::abs(g.pad_left)}) {
    if (size > kMost) throw std::invalid_argument("quads: a window of more than 2**28 rows or columns");
  }
  constexpr std::int64_t kMostTaps = std::int64_t{1} << 16;
  if (g.kernel_h > kMostTaps || g.kernel_w > kMostTaps || g.kernel_h * g.kernel_w > kMostTaps) {
    throw std::invalid_argument("quads: a window of more than 2**16 taps");
  }
  for (std::int64_t y = 0; y < g.kernel_h; ++y) {
    for (std::int64_t x = 0; x < g.kernel_w; ++x) {
      tap_ys_.push_back(static_cast<std::int32_t>(y * g.dilation_h));
      tap_xs_.push_back(static_cast<std::int32_t>(x * g.dilation_w));
    }
  }
}

void WindowReader::find(std::int64_t block, Lanes& lanes) const {
  constexpr std::int32_t kOutside = std::numeric_limits<std::int32_t>::min() / 2;
  Walk walk(out_, block * kQuadBlock);
  if (walk.x + kQuadBlock <= out_.w && walk.image < out_.n) {
    const std::int64_t y = walk.y * geometry_.stride_h - geometry_.pad_top;
    const std::int64_t x = walk.x * geometry_.stride_w - geometry_.pad_left;
    const std::int64_t position = (walk.image * in_.h + y) * in_.w + x;
    for (std::int64_t lane = 0; lane < kQuadBlock; ++lane) {
      lanes.ys[lane] = static_cast<std::int32_t>(y);
      lanes.xs[lane] = static_cast<std::int32_t>(x + lane * geometry_.stride_w);
      lanes.positions[lane] = static_cast<std::int32_t>(position + lane * geometry_.stride_w);
    }
    return;
  }
  for (std::int64_t lane = 0; lane < kQuadBlock; ++lane, walk.step()) {
    const std::int64_t y = walk.y * geometry_.stride_h - geometry_.pad_top;
    const std::int64_t x = walk.x * geometry_.stride_w - geometry_.pad_left;
    const bool exists = walk.image < out_.n;
    lanes.ys[lane] = exists ? static_cast<std::int32_t>(y) : kOutside;
    lanes.xs[lane] = exists ? static_cast<std::int32_t>(x) : kOutside;
    lanes.positions[lane] = exists ? static_cast<std::int32_t>((walk.image * in_.h + y) * in_.w + x) : 0;
  }
}

GatherTapsArgs WindowReader::taps_of(const Lanes& lanes, const std::uint8_t* in, std::uint8_t fill,
                                     std::uint8_t* out) const {
  return {.in = in,
          .quads = quad_count(in_),
          .positions = lanes.positions,
          .ys = lanes.ys,
          .xs = lanes.xs,
          .height = static_cast<std::int32_t>(in_.h),
          .width = static_cast<std::int32_t>(in_.w),
          .tap_ys = tap_ys_,
          .tap_xs = tap_xs_,
          .fill = fill,
          .out = out};
}

void WindowReader::read(const Int8Kernels& kernels, const std::uint8_t* in, std::uint8_t fill, std::int64_t block,
                        std::uint8_t* out) const {
  Lanes lanes;
  find(block, lanes);
  kernels.gather_taps(taps_of(lanes, in, fill, out));
}

void WindowReader::read_maxima(const Int8Kernels& kernels, const std::uint8_t* in, std::int64_t block,
                               std::uint8_t* taps, std::uint8_t* out) const {
  Lanes lanes;
  find(block, lanes);
  // Outside of an image there is the least byte, which padding never exceeds.
  kernels.max_taps(taps_of(lanes, in, 0, taps), out);
}

}  // namespace sift::cpu
