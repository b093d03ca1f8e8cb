// The outputs that the lanes of a tile hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/op.h"
#include "weights/panel.h"

namespace sift::cpu {

struct ConvTensors {
  Layout layout = Layout::nchw;
  std::int64_t units = 0;  // images, or groups of 16
  std::int64_t in_channels = 0;
  std::int64_t in_h = 0;
  std::int64_t in_w = 0;
  std::int64_t out_channels = 0;
  std::int64_t out_h = 0;
  std::int64_t out_w = 0;
  // Pixels from one output to the next, to the next row's, and to the next channel's.
  std::int64_t out_step = 1;
  std::int64_t out_row = 0;
  std::int64_t out_plane = 0;

  bool operator==(const ConvTensors&) const = default;
};

// The pixels of a tensor in NCHWn16 that a convolution writes: along each axis, every step-th from the first one on.
struct OutputGrid {
  std::int64_t tensor_h = 0;
  std::int64_t tensor_w = 0;
  std::int64_t first_y = 0;
  std::int64_t first_x = 0;
  std::int64_t step_y = 1;
  std::int64_t step_x = 1;

  bool operator==(const OutputGrid&) const = default;
  std::int64_t rows() const { return std::max<std::int64_t>(ceil_div(tensor_h - first_y, step_y), 0); }
  std::int64_t columns() const { return std::max<std::int64_t>(ceil_div(tensor_w - first_x, step_x), 0); }
};

// The position of a tile, in blocks. Tiles that wrap rows are numbered in `col`.
struct ConvTile {
  std::int64_t row = 0;
  std::int64_t col = 0;
  std::int64_t unit = 0;
};

// Tiles of a layer along each axis.
struct TileCounts {
  std::int64_t y;
  std::int64_t x;
  std::int64_t n;

  std::int64_t all() const { return y * x * n; }
};
TileCounts count_tiles(const TileShape& tile, std::int64_t units, std::int64_t out_h, std::int64_t out_w);

// The output in a tile's first lane.
struct Corner {
  std::int64_t unit;
  std::int64_t y;
  std::int64_t x;
};
Corner corner_of(const ConvTensors& tensors, const TileShape& tile, const ConvTile& place);

// A run of lanes with adjacent outputs, in a row of lanes of a block in the tile's first row. The lanes of the blocks
// below hold the outputs below.
struct LaneRun {
  std::int64_t block;    // in a row of the tile's blocks
  Corner corner;         // the output in the run's first lane
  std::int64_t lane;     // the run's first, in its row of lanes
  std::int64_t lanes;    // number of lanes that read input
  std::int64_t outputs;  // number of outputs that are stored, without lanes that only serve rotation; none if <= 0
};

// Fills `runs` with the runs of the first `cols` columns of blocks. `cols` may exceed the tile's columns, because
// copies of the input include the blocks next to the tile.
void list_runs(const ConvTensors& tensors, const TileShape& tile, const ConvTile& place, std::int64_t cols,
               std::vector<LaneRun>& runs);

}  // namespace sift::cpu
