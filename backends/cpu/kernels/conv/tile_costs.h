// What tiles of a convolution take, in cycles of which only the ratios matter.
#pragma once

#include <cstdint>

#include "conv/tiling.h"

namespace sift::cpu {

// What a tile takes, in cycles, with all rows.
struct TileCycles {
  double multiplying;
  double packing;
  double moving;    // what other cores have written to this one
  double fetching;  // weights, the first time that a core reads them
};

// `live`: the share of columns of which one of a group's rows has a non-zero.
TileCycles estimate_tile(const TilingProblem& problem, const TileShape& tile, const PanelSize& panel,
                         std::int64_t slice_channels, WeightForm form, int vec_bytes, double live);

// Rows of weights that are one group of code, on average.
double rows_of_group(const TilingProblem& problem);

// How rows are divided among threads, and what the layer takes then.
struct Division {
  std::int64_t row_chunks;
  double cycles;
};

// The best number of row chunks.
Division divide(const TilingProblem& problem, const TileShape& tile, WeightForm form, const TileCycles& cycles);

// No division takes less, which spares a search most of them.
double least_cycles(const TilingProblem& problem, const TileShape& tile, const TileCycles& cycles);

}  // namespace sift::cpu
