// The sources of the operands of a convolution's tile.
#pragma once

#include <vector>

#include "conv/conv_job.h"

namespace sift::cpu {

struct TileInput {
  std::vector<Gather> full;
  std::vector<Gather> masked;
  std::vector<std::ptrdiff_t> lines;  // offsets in a channel that are prefetched
  bool has_zeros = false;             // some lanes of the panel belong to no entry and must be zero
  std::vector<LaneRun> runs;
};

// Fills `input` with the sources of a channel's part of the panel.
void list_gathers(const ConvJob& job, const ConvTile& place, TileInput& input);

}  // namespace sift::cpu
