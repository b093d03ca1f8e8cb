// Copies channels of one tensor to a range of another tensor's: parts of a concatenation, slices, shuffles.
#pragma once

#include <cstdint>
#include <vector>

#include "base/op.h"

namespace sift::cpu {

// out[:, first + i] = in[:, channels[i]], in an output of `total` channels; its other channels stay as they are.
class ChannelCopy final : public Op {
 public:
  // Throws std::invalid_argument if a channel is negative or the output has too few channels.
  ChannelCopy(std::vector<std::int64_t> channels, std::int64_t first, std::int64_t total, Layout layout);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return layout_; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  std::vector<std::int64_t> channels_;
  std::int64_t end_ = 0;  // one more than the last channel of the input
  std::int64_t first_;
  std::int64_t total_;
  Layout layout_;
};

}  // namespace sift::cpu
