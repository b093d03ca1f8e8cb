// The tile of output pixels over which a weight gradient is summed at a time, and the panel of input that it reads.
#pragma once

#include <cstdint>
#include <iterator>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "weights/panel.h"

namespace sift::cpu {

// The output pixels of a tile, and the panel of their operands: planes of [groups][plane_h][plane_w][16], one for each
// channel, copy along y and copy along x.
struct GradientTile {
  std::int64_t groups;  // of 16 images
  std::int64_t h;
  std::int64_t w;
  TapAxis taps_y;
  TapAxis taps_x;
  std::int64_t plane_h;
  std::int64_t plane_w;
  std::int64_t slice_columns;  // columns of weights whose planes are in the panel at the same time
  std::int64_t chunk_rows;     // rows of weights whose gradients are in the second-level cache at the same time

  std::int64_t taps() const { return std::ssize(taps_y.taps) * std::ssize(taps_x.taps); }
  std::int64_t planes_per_channel() const { return std::ssize(taps_y.copies) * std::ssize(taps_x.copies); }
  std::int64_t positions() const { return groups * h * w; }
  std::int64_t plane_blocks() const { return groups * plane_h * plane_w; }
  std::int64_t plane_floats() const { return plane_blocks() * kLanes; }
};

// The tile with the least estimated time, for lists or for generated code. `rows` (of a group of the convolution) and
// `columns` are those of the weights; `out_h` and `out_w` are the sizes of the output.
GradientTile choose_gradient_tile(const ConvGeometry& geometry, std::int64_t rows, std::int64_t columns, double density,
                                  std::int64_t out_h, std::int64_t out_w, bool generates);

}  // namespace sift::cpu
