// Which tile of output pixels a weight gradient is summed over at a time, and the panel of input that it reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "base/conv_geometry.h"
#include "base/op.h"

namespace sift::cpu {

// An axis of the window over a tile. Taps whose pixels lie a multiple of the stride apart are a phase: they share the
// pixels of one plane, one every stride.
struct GradientTaps {
  std::int64_t count;
  std::int64_t stride;
  std::int64_t dilation;

  std::int64_t period() const { return stride / std::gcd(stride, dilation); }
  std::int64_t phases() const { return std::min(count, period()); }
  std::int64_t phase(std::int64_t tap) const { return tap % period(); }
  std::int64_t step(std::int64_t tap) const { return tap * dilation / stride; }
  std::int64_t reach() const { return step(count - 1); }
  std::int64_t first_pixel(std::int64_t phase) const { return phase * dilation % stride; }
};

inline GradientTaps taps_of_rows(const ConvGeometry& g) { return {g.kernel_h, g.stride_h, g.dilation_h}; }
inline GradientTaps taps_of_columns(const ConvGeometry& g) { return {g.kernel_w, g.stride_w, g.dilation_w}; }

// Output pixels of a tile, and the panel that their operands are copied to: planes of [groups][plane_h][plane_w][16].
struct GradientTile {
  std::int64_t groups;  // of 16 images
  std::int64_t h;
  std::int64_t w;
  bool by_tap;  // a plane holds the operands of one tap, not the pixels of a phase
  std::int64_t plane_h;
  std::int64_t plane_w;
  std::int64_t slice_columns;  // of the weights, whose planes are in the panel together
  std::int64_t chunk_rows;     // of the weights, whose gradients are in the second-level cache together

  std::int64_t positions() const { return groups * h * w; }
  std::int64_t plane_blocks() const { return groups * plane_h * plane_w; }
  std::int64_t plane_floats() const { return plane_blocks() * kLanes; }
};

// The tile with the least estimated time, of lists or of generated code. `rows`, of a group of the convolution, and
// `columns` are those of the weights, `out_h` and `out_w` the output's.
GradientTile choose_gradient_tile(const ConvGeometry& geometry, std::int64_t rows, std::int64_t columns, double density,
                                  std::int64_t out_h, std::int64_t out_w, bool generates);

}  // namespace sift::cpu
