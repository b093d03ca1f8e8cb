// Where the operands of a convolution's tile come from.
#pragma once

#include <vector>

#include "conv/conv_job.h"

namespace sift::cpu {

struct TileInput {
  std::vector<Gather> full;
  std::vector<Gather> masked;
  std::vector<std::ptrdiff_t> lines;  // places in a channel, to be prefetched
  bool has_zeros = false;             // some lanes of the panel are in no entry, and must be zero
  std::vector<LaneRun> runs;
};

// Fills `input` with what a channel's part of the panel is copied from.
void list_gathers(const ConvJob& job, const ConvTile& place, TileInput& input);

}  // namespace sift::cpu
