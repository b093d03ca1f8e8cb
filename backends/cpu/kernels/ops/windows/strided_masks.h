// Masks of the pixels that windows of stride two read from a row of a plane. With them, these windows are read in
// place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/conv_geometry.h"

namespace sift::cpu {

struct StridedMasks {
  std::int64_t in_w;
  std::int64_t out_w;
  std::vector<std::ptrdiff_t> window;  // see StridedWindowArgs
  std::vector<std::uint16_t> masks;
  std::int64_t blocks;
  std::int64_t last_lanes;

  // For rows of `in_w` pixels and `out_w` outputs.
  StridedMasks(const ConvGeometry& geometry, std::int64_t in_w, std::int64_t out_w);
};

}  // namespace sift::cpu
