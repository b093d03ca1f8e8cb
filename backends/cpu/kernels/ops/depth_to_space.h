// Moves channels to the pixels of blocks: DepthToSpace, and the last step of transposed convolutions.
#pragma once

#include <cstdint>

#include "base/op.h"

namespace sift::cpu {

// out[c][y * block_h + i][x * block_w + j] = in[channel(c, i, j)][y][x], with the channel (c * block_h + i) * block_w +
// j, or (i * block_w + j) * channels + c where `depth_first`. ONNX calls these orders CRD and DCR.
class DepthToSpace final : public Op {
 public:
  // Throws std::invalid_argument for an empty block.
  DepthToSpace(std::int64_t block_h, std::int64_t block_w, bool depth_first, Layout layout);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return layout_; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  std::int64_t block_h_;
  std::int64_t block_w_;
  bool depth_first_;
  Layout layout_;
};

}  // namespace sift::cpu
