// How output channels are shared out: chunks of about equal cost whose sums stay in a cache.
#pragma once

#include <cstdint>
#include <vector>

#include "weights/packed_weights.h"

namespace sift::cpu {

// What each band of rows costs, in operands: its non-zeros in every slice of every group, and a constant.
std::vector<double> band_costs(const std::vector<std::vector<PackedSlice>>& groups, std::int64_t rows,
                               std::int64_t band_rows);

// Bounds of chunks of rows, whole bands of about equal cost: as few as keep a chunk's sums within `cache_bytes` and
// the threads evenly loaded, since each chunk packs the panels again.
std::vector<std::int64_t> balance_rows(const std::vector<double>& band_costs, std::int64_t rows, std::int64_t band_rows,
                                       std::int64_t row_floats, std::int64_t tiles, int threads,
                                       std::int64_t cache_bytes);

}  // namespace sift::cpu
