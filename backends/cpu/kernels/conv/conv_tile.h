// One tile of a convolution: pack panel after panel, multiply, store.
#pragma once

#include <cstdint>

#include "conv/conv_job.h"

namespace sift::cpu {

// Output channels [row_begin, row_end) of one group at one place; the input at the next one is prefetched.
void run_tile(const ConvJob& job, const ConvTile& place, const ConvTile& next_place, std::int64_t row_begin,
              std::int64_t row_end, const float* in, const float* residual, float* out);

}  // namespace sift::cpu
