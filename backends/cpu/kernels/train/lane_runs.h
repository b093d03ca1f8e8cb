// The runs of a tensor in NCHWn16: the values of one channel in one group of 16 images.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/op.h"

namespace sift::cpu {

class LaneRuns {
 public:
  explicit LaneRuns(const Shape& shape) : shape_(shape) {}

  std::int64_t groups() const { return ceil_div(shape_.n, kLanes); }
  std::int64_t blocks() const { return shape_.h * shape_.w; }
  // Offset in floats from the beginning of the tensor.
  std::int64_t start(std::int64_t group, std::int64_t channel) const {
    return (group * shape_.c + channel) * blocks() * kLanes;
  }
  // Number of lanes of a group that hold images.
  int lanes(std::int64_t group) const { return static_cast<int>(std::min(kLanes, shape_.n - group * kLanes)); }

 private:
  Shape shape_;
};

// `array` from this offset on; null if `array` is null.
template <typename Value>
Value* from(Value* array, std::int64_t place) {
  return array == nullptr ? nullptr : array + place;
}

}  // namespace sift::cpu
