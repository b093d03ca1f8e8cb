// One tile of a convolution: pack panel after panel, multiply, store.
#pragma once

#include <cstdint>
#include <vector>

#include "epilogue.h"
#include "kernel_table.h"
#include "op.h"
#include "packed_weights.h"
#include "tiling.h"

namespace sift::cpu {

struct ConvTensors {
  Layout layout = Layout::planes;
  std::int64_t units = 0;  // images, or groups of 16
  std::int64_t in_channels = 0;
  std::int64_t in_h = 0;
  std::int64_t in_w = 0;
  std::int64_t out_channels = 0;
  std::int64_t out_h = 0;
  std::int64_t out_w = 0;
};

// Where a tile lies, in blocks.
struct ConvTile {
  std::int64_t row = 0;
  std::int64_t col = 0;
  std::int64_t unit = 0;
};

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
  std::int64_t first_in_channel;
  std::int64_t first_out_channel;
  std::int64_t row_count;  // output channels of the group; the chunk may go beyond, to a multiple of 4
  std::int64_t band_rows;  // of each slice's order, if it has one
};

// Output channels [row_begin, row_end) of one group at one place.
void run_tile(const ConvJob& job, const ConvTile& place, std::int64_t row_begin, std::int64_t row_end, const float* in,
              const float* residual, float* out);

// What each band of rows costs, in operands: its non-zeros in every slice of every group, and a constant.
std::vector<double> band_costs(const std::vector<std::vector<PackedSlice>>& groups, std::int64_t rows,
                               std::int64_t band_rows);

// Bounds of chunks of rows, whole bands of about equal cost: as few as keep a chunk's sums within `cache_bytes` and
// the threads evenly loaded, since each chunk packs the panels anew.
std::vector<std::int64_t> balance_rows(const std::vector<double>& band_costs, std::int64_t rows,
                                       std::int64_t band_rows, std::int64_t tile_blocks, std::int64_t tiles,
                                       int threads, std::int64_t cache_bytes);

}  // namespace sift::cpu
