// What becomes of a sum of products.
#pragma once

#include "simd/packed/row_kernels.h"

namespace sift::cpu::SIFT_ISA {

[[gnu::always_inline]] inline void finish(const PackedRowsArgs& args, std::int64_t row, int x_row, float sum) {
  const float scale = args.scales == nullptr || args.group_columns != 0 ? 1.0F : args.scales[row];
  args.out[row * args.row_stride + x_row * args.x_stride] = args.bias[row] + scale * sum;
}

}  // namespace sift::cpu::SIFT_ISA
