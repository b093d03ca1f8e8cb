// The destinations of the sums of a convolution's tile.
#pragma once

#include <optional>
#include <vector>

#include "conv/conv_job.h"

namespace sift::cpu {

// Fills `scatters` with the tile's blocks, or parts of blocks, that lie inside the output, in the tile's order. `runs`
// are those of its columns.
void list_scatters(const ConvJob& job, const std::vector<LaneRun>& runs, std::vector<Scatter>& scatters);

// How the micro-kernel can store the sums of a row by itself, relative to the first scatter's position in the first
// row. None if the tile needs an epilogue: for parts of blocks, uneven distances, or activations other than bounds.
std::optional<DirectOutput> direct_output(const ConvJob& job, const std::vector<Scatter>& scatters, const float* out);

}  // namespace sift::cpu
