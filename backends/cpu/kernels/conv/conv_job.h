// The arguments that all tiles of one group of a convolution share.
#pragma once

#include <cstdint>
#include <vector>

#include "base/activation.h"
#include "base/conv_geometry.h"
#include "base/dtype.h"
#include "conv/tile_positions.h"
#include "simd/kernel_table.h"
#include "weights/packed_weights.h"
#include "weights/panel.h"

namespace sift::cpu {

struct ConvJob {
  const KernelTable& kernels;
  std::uint64_t plan;  // number of the plan, which no other one has
  DType dtype;
  RowsFunction rows;
  const ConvGeometry& geometry;
  const TileShape& tile;
  const PanelShape& panel;
  const std::vector<PackedSlice>& packed;
  std::int64_t channels;  // input channels of the group
  std::int64_t slice_channels;
  std::int64_t unit_channels;                      // of code
  bool scales_lists;                               // see Tiling
  const std::vector<std::ptrdiff_t>& taps;         // of code, see RowsArgs
  const std::vector<std::uint16_t>& offsets;       // of dense weights, see RowsArgs
  const std::vector<std::int32_t>& rotated_lanes;  // of tiles that rotate, see RowsArgs
  const float* bias;
  const Activation& activation;
  const ConvTensors& tensors;
  bool in_place;  // operands are read from the input without a copy, see TilingProblem
  std::int64_t first_in_channel;
  std::int64_t first_out_channel;
  std::int64_t row_count;   // output channels of the group; a chunk may extend beyond, to a multiple of 4
  std::int64_t band_rows;   // rows of a band in which each slice sorts its rows
  bool prefetches_in_runs;  // see input_ahead.h
  bool non_temporal;        // whether outputs that the micro-kernel writes itself use non-temporal stores
};

}  // namespace sift::cpu
