// Chooses the tile of a convolution with the least estimated time, and the form of the weights for it.
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
  int threads = 1;        // that divide tiles and rows among them
  bool may_list = false;  // csr may replace csr_pairs, because the caller did not choose the form

  // Whether generated code takes less time than lists. Enough non-zeros must share an operand, rows must be long enough
  // to make up for loading and storing sums, and there must be enough blocks, because code has twice the bytes of
  // lists.
  bool suits_code() const;
  // Whether generated code would be larger than the part of the last-level cache that a process can count on.
  bool code_is_far() const;
  // Whether generated code loads weights four at a time (CodeWeight). It is longer, and has to serve many blocks:
  // layers of one tap may be products of a few rows. Code for one shape serves all, so that the first one decides.
  bool loads_in_fours() const;
  // Of the output.
  std::int64_t blocks() const;
  // Whether there are so few blocks that tiles of any size can share lists.
  bool has_few_blocks() const;
  // Whether generated code can read its operands from the input, so that nothing is copied.
  bool reads_in_place() const;
  // Whether tasks take one part of the weights after the other, and all tiles for each, rather than the reverse.
  bool takes_weights_first(const TileShape& tile) const;
};

// Whether one channel's taps of the smallest tile have offsets of 16 bits.
bool panel_fits(const ConvGeometry& geometry, Layout layout, DType dtype);

// The tiling with the least estimated time, for a geometry whose panel fits.
Tiling choose_tiling(const TilingProblem& problem, const KernelTable& kernels);

}  // namespace sift::cpu
