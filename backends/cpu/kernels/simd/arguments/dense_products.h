// Arguments of dense products by tiles that stay in the first-level cache, see dense_product.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/activation.h"

namespace sift::cpu {

// A product of dense rows and a block of 16 tokens, which is added to up to two sums.
struct DenseTileArgs {
  const float* weights;   // [depth][dense_rows]
  const float* operands;  // [depth][16], aligned to 64 bytes
  std::int64_t depth;
  struct Target {
    float* sums;  // [dense_rows][16], aligned to 64 bytes; null: none
    float sign;
  };
  Target targets[2];
  const float* ahead;  // prefetched meanwhile, a line of 64 bytes per step of the depth
  std::int64_t ahead_lines;
};

// out = first * first_scales + second * second_scales, [count / 16][16], all aligned to 64 bytes.
struct CombineArgs {
  const float* first;
  const float* first_scales;  // [16]
  const float* second;
  const float* second_scales;  // [16]
  float* out;
  std::int64_t count;  // a multiple of 16
};

// out = activation(sums * row_scales * lane_scales + bias + residual), [rows][16], all aligned to 64 bytes.
struct DenseFinishArgs {
  const float* sums;
  const float* row_scales;   // [rows]
  const float* lane_scales;  // [16]
  const float* bias;         // [rows]
  const float* residual;     // null: none
  float* out;
  std::int64_t rows;
  Activation activation;
  bool non_temporal;  // stores
};

}  // namespace sift::cpu
