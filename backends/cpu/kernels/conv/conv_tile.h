// One tile of a convolution: copy each slice into a panel, multiply, and store the result.
#pragma once

#include <cstdint>

#include "conv/conv_job.h"

namespace sift::cpu {

// Computes output channels [row_begin, row_end) of one group for a tile, and prefetches the input of the next tile.
void run_tile(const ConvJob& job, const ConvTile& place, const ConvTile& next_place, std::int64_t row_begin,
              std::int64_t row_end, const float* in, const float* residual, float* out);

}  // namespace sift::cpu
