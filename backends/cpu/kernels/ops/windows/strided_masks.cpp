#include "ops/windows/strided_masks.h"

#include <algorithm>

#include "base/op.h"

namespace sift::cpu {
namespace {

// Those of kLanes pixels from `first` on that are in a row of `width`.
std::uint16_t pixels_inside(std::int64_t first, std::int64_t width) {
  const std::int64_t begin = std::clamp<std::int64_t>(-first, 0, kLanes);
  const std::int64_t end = std::clamp<std::int64_t>(width - first, begin, kLanes);
  return static_cast<std::uint16_t>(((1U << end) - 1U) & ~((1U << begin) - 1U));
}

}  // namespace

StridedMasks::StridedMasks(const ConvGeometry& geometry, std::int64_t in_w, std::int64_t out_w)
    : in_w(in_w), out_w(out_w), blocks(ceil_div(out_w, kLanes)), last_lanes(out_w - (blocks - 1) * kLanes) {
  for (std::int64_t i = 0; i < geometry.kernel_h; ++i) {
    for (std::int64_t j = 0; j < geometry.kernel_w; ++j) {
      const std::int64_t right = j * geometry.dilation_w - geometry.pad_left;
      window.push_back(i * geometry.dilation_h * in_w + right);
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t first = block * 2 * kLanes + right;
        masks.push_back(pixels_inside(first, in_w));
        masks.push_back(pixels_inside(first + kLanes, in_w));
      }
    }
  }
}

}  // namespace sift::cpu
