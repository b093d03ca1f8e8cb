// One tile of a convolution: pack panel after panel, multiply, store.
#pragma once

#include <cstdint>
#include <vector>

#include "epilogue.h"
#include "kernel_table.h"
#include "op.h"
#include "packed_weights.h"
#include "tile_places.h"
#include "tiling.h"

namespace sift::cpu {

struct ConvJob {
  const KernelTable& kernels;
  RowsFunction rows;
  const ConvGeometry& geometry;
  const TileShape& tile;
  const PanelShape& panel;
  const std::vector<PackedSlice>& slices;
  const std::vector<std::int32_t>& turn_lanes;  // of tiles that rotate, see RowsArgs
  const float* bias;
  const Activation& activation;
  const ConvTensors& tensors;
  bool in_place;           // operands are read where they are, see TilingProblem
  std::int64_t first_in_channel;
  std::int64_t first_out_channel;
  std::int64_t row_count;  // output channels of the group; the chunk may go beyond, to a multiple of 4
  std::int64_t band_rows;  // of each slice's order, if it has one
  bool streams;            // where outputs that are stored directly go past the caches
};

// Output channels [row_begin, row_end) of one group at one place; the input at the next one is prefetched.
void run_tile(const ConvJob& job, const ConvTile& place, const ConvTile& next_place, std::int64_t row_begin,
              std::int64_t row_end, const float* in, const float* residual, float* out);

}  // namespace sift::cpu
