#include "ops/windows/plane_masks.h"

#include <algorithm>

namespace sift::cpu {

bool PlaneMasks::fit(const ConvGeometry& geometry, const Shape& in, const Shape& out) {
  return geometry.stride_h == 1 && geometry.stride_w == 1 && in.w == out.w;
}

PlaneMasks::PlaneMasks(const ConvGeometry& geometry, const Shape& in, const Shape& out)
    : in(in),
      out(out),
      pad_top(geometry.pad_top),
      blocks(ceil_div(out.h * out.w, kLanes)),
      last_lanes(out.h * out.w - (blocks - 1) * kLanes) {
  const auto taps = static_cast<std::size_t>(geometry.kernel_h * geometry.kernel_w);
  window.reserve(taps);
  masks.assign(taps * static_cast<std::size_t>(blocks), 0);
  std::uint16_t* of_tap = masks.data();
  for (std::int64_t i = 0; i < geometry.kernel_h; ++i) {
    const std::int64_t up = i * geometry.dilation_h - geometry.pad_top;
    for (std::int64_t j = 0; j < geometry.kernel_w; ++j, of_tap += blocks) {
      const std::int64_t right = j * geometry.dilation_w - geometry.pad_left;
      window.push_back(up * in.w + right);
      const std::int64_t first = std::max<std::int64_t>(-right, 0);
      const std::int64_t end = std::min(in.w - right, out.w);
      for (std::int64_t y = std::max<std::int64_t>(-up, 0); y < std::min(in.h - up, out.h); ++y) {
        for (std::int64_t place = y * out.w + first; place < y * out.w + end; ++place) {
          of_tap[place / kLanes] |= static_cast<std::uint16_t>(1U << place % kLanes);
        }
      }
    }
  }
}

}  // namespace sift::cpu
