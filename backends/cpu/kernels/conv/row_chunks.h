// Divides output channels among threads: into chunks of about equal cost whose sums stay in a cache.
#pragma once

#include <cstdint>
#include <vector>

#include "weights/packed_weights.h"

namespace sift::cpu {

// The cost of each band of rows, in operands: its non-zeros in all slices and groups, plus a constant.
std::vector<double> band_costs(const std::vector<std::vector<PackedSlice>>& groups, std::int64_t rows,
                               std::int64_t band_rows);

// Bounds of about `count` chunks of rows, which are whole bands and cost about the same.
std::vector<std::int64_t> balance_rows(const std::vector<double>& band_costs, std::int64_t rows, std::int64_t band_rows,
                                       std::int64_t count);

}  // namespace sift::cpu
