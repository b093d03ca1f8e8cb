#include "conv/row_chunks.h"

#include <algorithm>

namespace sift::cpu {

std::vector<double> band_costs(const std::vector<std::vector<PackedSlice>>& groups, std::int64_t rows,
                               std::int64_t band_rows) {
  const std::int64_t padded = padded_rows(rows);
  std::vector<double> costs;
  for (std::int64_t row = 0; row < padded; row += band_rows) {
    costs.push_back(static_cast<double>(std::min(band_rows, padded - row)));
  }
  for (const std::vector<PackedSlice>& slices : groups) {
    for (const PackedSlice& slice : slices) {
      if (slice.columns > 0) continue;  // dense: all alike
      if (!slice.code.empty()) {        // a group is a band
        for (std::size_t band = 0; band < costs.size(); ++band) {
          costs[band] += slice.starts[band + 1] - slice.starts[band];
        }
        continue;
      }
      // Lists come in as many per four rows throughout.
      const std::size_t per_quad = (slice.starts.size() - 1) / static_cast<std::size_t>(padded / 4);
      const auto before = [&](std::int64_t row) { return slice.starts[static_cast<std::size_t>(row / 4) * per_quad]; };
      for (std::size_t band = 0; band < costs.size(); ++band) {
        const std::int64_t begin = static_cast<std::int64_t>(band) * band_rows;
        costs[band] += before(std::min(begin + band_rows, padded)) - before(begin);
      }
    }
  }
  return costs;
}

std::vector<std::int64_t> balance_rows(const std::vector<double>& band_costs, std::int64_t rows, std::int64_t band_rows,
                                       std::int64_t count) {
  const auto bands = static_cast<std::int64_t>(band_costs.size());
  double total = 0;
  for (const double cost : band_costs) total += cost;
  std::vector<std::int64_t> bounds{0};
  double sum = 0;
  for (std::int64_t band = 0; band < bands; ++band) {
    sum += band_costs[static_cast<std::size_t>(band)];
    const auto cut = static_cast<std::int64_t>(bounds.size());
    if (cut < count && sum >= total * static_cast<double>(cut) / static_cast<double>(count)) {
      bounds.push_back((band + 1) * band_rows);
    }
  }
  // The last band may be shorter than the others.
  const std::int64_t padded = padded_rows(rows);
  if (bounds.back() >= padded) bounds.pop_back();
  bounds.push_back(padded);
  return bounds;
}

}  // namespace sift::cpu
