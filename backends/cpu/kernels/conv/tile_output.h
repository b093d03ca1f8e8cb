// Where the sums of a convolution's tile go.
#pragma once

#include <optional>
#include <vector>

#include "conv/conv_job.h"

namespace sift::cpu {

// Fills `scatters` with the tile's blocks, or parts of blocks, that lie inside the output, in the tile's order. `runs`
// are those of its columns.
void list_scatters(const ConvJob& job, const std::vector<LaneRun>& runs, std::vector<Scatter>& scatters);

// How the micro-kernel can store a row's sums by itself, counted from the first scatter's place in the first row;
// nothing where the tile needs an epilogue: for parts of blocks, uneven distances, activations other than bounds.
std::optional<DirectOutput> direct_output(const ConvJob& job, const std::vector<Scatter>& scatters, const float* out);

}  // namespace sift::cpu
