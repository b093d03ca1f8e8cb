// Winograd's convolution fused with the max pooling after it, as at the beginning of image models. The output of the
// convolution, four times as large as the pooled output, is not stored. In NCHWn16 each tile updates the maxima of its
// windows. In NCHW a thread computes a band of rows of tiles, and pools it while it is in its second-level cache.
#pragma once

#include <cstdint>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "conv/winograd.h"
#include "ops/windows/window_op.h"
#include "simd/kernel_table.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

class PooledWinograd final : public Op {
 public:
  // `geometry` and `activation` are the convolution's, `window` and `ceil_mode` those of the pooling.
  // `bias` is empty or has one value per row. Throws std::invalid_argument for a convolution that Winograd refuses, and
  // for a window that is dilated or not larger than its padding.
  PooledWinograd(const SparseWeights& weights, std::vector<float> bias, const ConvGeometry& geometry,
                 Activation activation, const ConvGeometry& window, bool ceil_mode, Layout layout,
                 const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override { return pool_.output_shape(conv_.output_shape(in)); }
  Layout input_layout() const override { return conv_.input_layout(); }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;
  std::int64_t weight_bytes() const override { return conv_.weight_bytes(); }

  std::int64_t tile() const { return conv_.tile(); }  // outputs of the convolution along an axis

 private:
  void run_nchw(ThreadPool& pool, const Shape& shape, const float* in, float* out) const;
  // Rows of tiles of a band.
  std::int64_t band_tiles(const Shape& convolved) const;
  void pool_rows(const Shape& image, RowRange wanted, const float* in, float* out) const;
  void run_nchw_n16(ThreadPool& pool, const Shape& shape, const float* in, float* out) const;
  void pool_tile(const float* points, const std::vector<PoolPart>& parts, std::int64_t plane, float* out) const;

  Winograd conv_;
  MaxPool pool_;
  ConvGeometry window_;
  Activation activation_;
  const KernelTable& kernels_;
};

}  // namespace sift::cpu
