// Divides a kernel whose taps do not fit into one panel into rectangles that do. The convolution is the sum of the
// convolutions with these parts.
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

// The parts of a kernel: one, except for kernels from about 32 x 32 on.
std::vector<KernelPart> kernel_parts(const ConvGeometry& geometry, Layout layout, DType dtype);

// The geometry of the convolution with one part. Its output has the size of the whole output. Taps that are left out on
// a side reduce the padding there, which may become negative.
ConvGeometry geometry_of_part(const ConvGeometry& geometry, const KernelPart& part);

SparseWeights weights_of_part(const SparseWeights& weights, const ConvGeometry& geometry, const KernelPart& part);

}  // namespace sift::cpu
