// Moves values to other positions, in any layout: transposes, slices, windows, and their inverses.
#pragma once

#include <cstdint>
#include <vector>

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// The sources of a tensor's values: the value of position p and channel c is at positions[p] + channels[c], in floats
// of the operand's memory.
struct RearrangeMap {
  static constexpr std::int64_t kKept = -1;

  std::vector<std::int64_t> positions;  // [n h w] of the output; kKept: the position is not written
  std::vector<std::int64_t> channels;   // [written channels]
  std::int64_t first_channel = 0;       // first channel of the output that is written
};

// Copies by a map for one shape. Several operators may write parts of one tensor, as in a concatenation.
class Rearrange final : public Op {
 public:
  // Throws std::invalid_argument for a map that does not fit the shapes.
  Rearrange(const RearrangeMap& map, const Shape& in, Layout in_layout, const Shape& out, Layout out_layout,
            const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return in_layout_; }
  Layout output_layout() const override { return out_layout_; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  // Up to sixteen lanes that are adjacent in every channel of the output.
  struct Block {
    std::int64_t out;  // of the first written lane and channel
    std::size_t first_run;
    std::size_t end_run;
  };

  void add_lanes(const std::vector<std::int64_t>& positions);
  void add_block(std::int64_t out, const std::int64_t (&sources)[kLanes], std::int64_t lanes);
  void copy_row(std::int64_t row, const float* in, float* out) const;

  Shape in_shape_;
  Shape out_shape_;
  Layout in_layout_;
  Layout out_layout_;
  std::vector<std::int64_t> rows_;  // positions of an output of rows in planes, which has no blocks
  std::vector<std::int64_t> channels_;
  std::int64_t first_channel_;
  bool channels_adjacent_;
  std::vector<Block> blocks_;
  std::vector<SourceRun> runs_;
  const KernelTable& kernels_;
};

}  // namespace sift::cpu
