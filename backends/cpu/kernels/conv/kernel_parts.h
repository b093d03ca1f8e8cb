// Kernels of a convolution whose taps do not fit one panel, cut into rectangles that do: the convolution is the sum of
// those with the parts.
#pragma once

#include <cstdint>
#include <vector>

#include "base/op.h"
#include "conv/tiling.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

// Taps [y_begin, y_end) x [x_begin, x_end).
struct KernelPart {
  std::int64_t y_begin;
  std::int64_t y_end;
  std::int64_t x_begin;
  std::int64_t x_end;
};

// One part for all kernels but very large ones: from about 32 x 32 on.
std::vector<KernelPart> kernel_parts(const ConvGeometry& geometry, Layout layout, DType dtype);

// The convolution with one part, whose output has the whole one's size. Taps that are left out on a side take padding
// with them, so that what remains of it may be negative.
ConvGeometry geometry_of_part(const ConvGeometry& geometry, const KernelPart& part);

SparseWeights weights_of_part(const SparseWeights& weights, const ConvGeometry& geometry, const KernelPart& part);

}  // namespace sift::cpu
