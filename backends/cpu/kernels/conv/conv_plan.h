// How a convolution runs inputs of one shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "conv/conv.h"
#include "conv/conv_packing.h"
#include "conv/tile_positions.h"
#include "conv/tiling.h"

namespace sift::cpu {

// A shape as the kernels see it: for pointwise convolutions, an image is one long row.
struct Conv::Problem {
  TilingProblem tiling;
  ConvTensors tensors;
};

// How inputs of one shape are run by a given number of threads.
struct Conv::Plan {
  std::uint64_t number;  // from 1 on
  Shape shape;
  int threads;
  std::optional<OutputGrid> grid;
  Problem problem;
  Tiling tiling;
  PanelShape panel;
  std::vector<std::ptrdiff_t> taps;         // for generated code, see RowsArgs
  std::vector<std::uint16_t> offsets;       // for dense weights, see RowsArgs
  std::vector<std::int32_t> rotated_lanes;  // see RowsArgs
  std::shared_ptr<ConvPacking> packing;     // shared with other plans that it suits
};

}  // namespace sift::cpu
