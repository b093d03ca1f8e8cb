// Where the floats of some rows at one block of positions lie, in any layout of floats.
#pragma once

#include <cstdint>

#include "base/op.h"
#include "int8/positions.h"
#include "int8/quad_product.h"

namespace sift::cpu {

// The floats of a tensor in float_quads, [blocks][4 quads][16].
template <typename Float>
Float* floats_beside(const Shape& shape, Float* tensor) {
  return tensor + element_count(shape, Layout::quads);
}

class FloatRows {
 public:
  struct Block {
    float* first;            // row's; of rows in pieces, what the lanes count from
    std::ptrdiff_t stride;   // from one row to the next
    bool whole;              // whether a row's 16 floats are adjacent
    std::int64_t count = 0;  // of positions that exist, of rows in pieces
    std::int64_t lanes[kQuadBlock] = {};

    // The same with adjacent floats, copied to [rows][16]; positions past the last are 0.
    Block copied(std::int64_t rows, float* to) const;
    // Floats from [rows][16].
    void fill(std::int64_t rows, const float* from) const;
  };

  // `tensor` is only read where blocks are copied.
  FloatRows(const Shape& shape, Layout layout, const float* tensor)
      : shape_(shape), layout_(layout), tensor_(const_cast<float*>(tensor)) {}

  Block block(const QuadSums& sums) const;

 private:
  Shape shape_;
  Layout layout_;
  float* tensor_;
};

}  // namespace sift::cpu
