// Masks of the lanes of a plane's blocks whose operand, for a tap, is inside the plane. With them, windows are read
// from the plane in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"

namespace sift::cpu {

struct PlaneMasks {
  Shape in;
  Shape out;
  std::int64_t pad_top;
  std::vector<std::ptrdiff_t> window;  // see MaskedWindowArgs
  std::vector<std::uint16_t> masks;
  std::int64_t blocks;
  std::int64_t last_lanes;

  // For windows that `fit`.
  PlaneMasks(const ConvGeometry& geometry, const Shape& in, const Shape& out);

  // Whether outputs have as many columns as the plane, and adjacent outputs have adjacent operands.
  static bool fit(const ConvGeometry& geometry, const Shape& in, const Shape& out);
};

}  // namespace sift::cpu
