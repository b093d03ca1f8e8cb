#include "int8/float_rows.h"

#include <algorithm>

namespace sift::cpu {

FloatRows::Block FloatRows::block(const QuadSums& sums) const {
  if (layout_ == Layout::float_quads) {
    const std::int64_t row = sums.block * quad_count(shape_) * kQuad + sums.first_row;
    return {.first = floats_beside(shape_, tensor_) + row * kQuadBlock, .stride = kQuadBlock, .whole = true};
  }
  PlainPositions positions(shape_, layout_);
  const PlainBlock plain = positions.block(sums.block);
  float* const first = tensor_ + sums.first_row * plain.channel_stride;
  // Lanes of no row are there as well, and may hold anything.
  if (plain.contiguous && (plain.count == kQuadBlock || layout_ == Layout::nchw_n16)) {
    return {.first = first + plain.lanes[0], .stride = plain.channel_stride, .whole = true};
  }
  Block found{.first = first, .stride = plain.channel_stride, .whole = false, .count = plain.count};
  std::copy_n(plain.lanes, plain.count, found.lanes);
  return found;
}

FloatRows::Block FloatRows::Block::copied(std::int64_t rows, float* to) const {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t lane = 0; lane < kQuadBlock; ++lane) {
      to[row * kQuadBlock + lane] = lane < count ? first[row * stride + lanes[lane]] : 0;
    }
  }
  return {.first = to, .stride = kQuadBlock, .whole = true};
}

void FloatRows::Block::fill(std::int64_t rows, const float* from) const {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t lane = 0; lane < count; ++lane) first[row * stride + lanes[lane]] = from[row * kQuadBlock + lane];
  }
}

}  // namespace sift::cpu
