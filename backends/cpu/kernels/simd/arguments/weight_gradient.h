// Arguments of weight gradients: blocks of sums over lines of positions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sift::cpu {

inline constexpr int kMostGradientSlots = 12;

// Adjacent positions of a tile, in panels that are aligned to 64 bytes.
struct GradientLine {
  const float* x;  // of the panel's first column
  const float* dy;
  std::uint64_t count;  // of blocks of 16 lanes
};
// Blocks of gradient_rows(slots) rows with up to `slots` weights each. `sums` of a block begin at a multiple of 16.
struct GradientRun {
  int slots;
  std::uint32_t blocks;
  const std::uint32_t* offsets;  // [blocks][rows][slots], floats from a line's `x` to the column's operands
  const std::uint32_t* rows;     // [blocks][rows], floats from `dy` to the row's gradients
  float* sums;                   // [blocks][rows * slots, in whole 16s], added to
};

}  // namespace sift::cpu
