#include "weights/changing_values.h"

namespace sift::cpu {

SparseWeights weights_of_places(std::int64_t rows, std::int64_t columns, std::span<const std::int64_t> indices,
                                std::span<const std::int64_t> places) {
  if (!places.empty() && places.size() != indices.size()) {
    throw std::invalid_argument("weights: as many places as indices are needed");
  }
  const auto count = static_cast<std::int64_t>(indices.size());
  std::vector<float> moved(indices.size());
  std::vector<bool> taken(indices.size());
  for (std::size_t i = 0; i < moved.size(); ++i) {
    const std::int64_t place = places.empty() ? static_cast<std::int64_t>(i) : places[i];
    if (place < 0 || place >= count || taken[static_cast<std::size_t>(place)]) {
      throw std::invalid_argument("weights: places must be those of the values, each of them once");
    }
    taken[static_cast<std::size_t>(place)] = true;
    moved[i] = ChangingValues::place(static_cast<std::size_t>(place));
  }
  return SparseWeights::from_indices(rows, columns, indices, moved);
}

}  // namespace sift::cpu
