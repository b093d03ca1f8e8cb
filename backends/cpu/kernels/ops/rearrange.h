// The same values in other places, in either layout: transposition, slices, windows, and their way back.
#pragma once

#include <cstdint>
#include <vector>

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// Where the values of a tensor come from: those of position p and channel c are at positions[p] + channels[c], counted
// in floats of the operand as it lies in memory.
struct RearrangeMap {
  static constexpr std::int64_t kKept = -1;

  std::vector<std::int64_t> positions;  // [n h w] of the output; kKept: the position is left as it is
  std::vector<std::int64_t> channels;   // [channels that are written]
  std::int64_t first_channel = 0;       // of the output, that is written
};

// Copies by a map that is made for one shape. Several of them may write parts of one tensor, as a concatenation does.
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
  // Sixteen lanes, or fewer, that lie next to each other in every channel of the output.
  struct Block {
    std::int64_t out;  // of the first lane and channel that are written
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
