// Which lanes of a plane's blocks find the operand of a tap within the plane: windows are then slid over the plane
// where it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"

namespace sift::cpu {

struct PlaneMasks {
  Shape in;
  std::vector<std::ptrdiff_t> window;  // see MaskedWindowArgs
  std::vector<std::uint16_t> masks;
  std::int64_t blocks;
  std::int64_t last_lanes;

  // For windows that `fit`.
  PlaneMasks(const ConvGeometry& geometry, const Shape& in, const Shape& out);

  // Whether there are as many columns of outputs as of the plane, and neighbours have neighbouring operands.
  static bool fit(const ConvGeometry& geometry, const Shape& in, const Shape& out);
};

}  // namespace sift::cpu
