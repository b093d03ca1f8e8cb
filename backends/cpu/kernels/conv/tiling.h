// Which tile of a convolution takes the least time, and how its weights are stored for it.
#pragma once

#include <cstdint>

#include "base/conv_geometry.h"
#include "base/dtype.h"
#include "base/microarchitecture.h"
#include "base/op.h"
#include "simd/kernel_table.h"
#include "weights/panel.h"

namespace sift::cpu {

// What the choice of a tile depends on.
struct TilingProblem {
  ConvGeometry geometry;
  DType dtype;
  Layout layout;
  WeightForm form;     // csr, csr_pairs, dense or code
  std::int64_t units;  // images, or groups of 16
  std::int64_t output_h;
  std::int64_t output_w;
  std::int64_t channels;  // input channels of a group
  std::int64_t rows;      // output channels of a group
  double density;
  Microarchitecture microarchitecture;
  bool may_list = false;  // csr in place of csr_pairs, as the caller has left the form open

  // Whether code for the layer takes less time than lists: non-zeros that share an operand, rows whose sums are worth
  // their start and end, and blocks that are worth the way of the code to the core, which has twice the bytes of lists.
  bool suits_code() const;
  // Whether generated code would be larger than what a process can count on of the last-level cache.
  bool code_is_far() const;
  // Whether operands lie in the input as generated code reads them, so that there is nothing to copy.
  bool reads_in_place() const;
};

// Whether one channel's taps of the smallest tile have offsets of 16 bits.
bool panel_fits(const ConvGeometry& geometry, Layout layout, DType dtype);

// The tiling with the least estimated time, for a geometry whose panel fits.
Tiling choose_tiling(const TilingProblem& problem, const KernelTable& kernels);

}  // namespace sift::cpu
