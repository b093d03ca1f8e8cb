// Values of weights that change while their places do not, as training changes them.
//
// A packing of such weights is made from a SparseWeights whose values are places in these, moved about as if they were
// weights. What it holds of them then says where each of its values comes from.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "base/page_allocator.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

class ChangingValues {
 public:
  explicit ChangingValues(std::size_t count) : values_(most(count) + 1) {}

  // The i-th value's place, as a weight that nothing but moves.
  static float place(std::size_t i) { return std::bit_cast<float>(static_cast<std::uint32_t>(i) + 1); }
  static std::uint32_t index(float place) { return std::bit_cast<std::uint32_t>(place) - 1; }

  std::size_t count() const { return values_.size() - 1; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(values_.capacity() * sizeof(values_[0])); }

  // How often they were set.
  std::uint64_t version() const { return version_; }

  // Not while a convolution runs. Throws std::invalid_argument if there are not `count` values.
  void set(std::span<const float> values) {
    if (values.size() != count()) throw std::invalid_argument("weights: as many values as indices are needed");
    std::ranges::copy(values, values_.begin() + 1);
    ++version_;
  }

  // to[i] = the value at places[i]; zero at 0, the place of what fills lists up.
  void gather(std::span<const std::uint32_t> places, float* to) const {
    for (std::size_t i = 0; i < places.size(); ++i) to[i] = values_[places[i]];
  }

 private:
  static std::size_t most(std::size_t count) {
    if (count < std::numeric_limits<std::uint32_t>::max()) return count;
    throw std::invalid_argument("weights: their number must fit 32 bits");
  }

  std::vector<float, PageAllocator<float>> values_;  // the first is zero
  std::uint64_t version_ = 0;
};

// Weights that are places of values. `indices` as of SparseWeights::from_indices; `places` says which value each of
// them has, and is empty where they have one order. Throws std::invalid_argument for what does not fit.
SparseWeights weights_of_places(std::int64_t rows, std::int64_t columns, std::span<const std::int64_t> indices,
                                std::span<const std::int64_t> places);

}  // namespace sift::cpu
