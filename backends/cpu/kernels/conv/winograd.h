// Convolution by Winograd's minimal filtering (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
// section 4): 36 products per channel for 3x3 outputs of a 4x4 kernel, or for 4x4 outputs of a 3x3 kernel.
//
// A convolution with stride s is a sum over s x s phases of the image. A phase has every s-th pixel along both axes,
// and is convolved, with stride one, with every s-th tap of the kernel. A 7x7 kernel with stride 2 and three channels
// becomes a 4x4 kernel with twelve phases, and takes 48 multiply-adds per output instead of 147.
//
// It suits dense weights with few phases, such as those of first layers of image models: all products of a tile are
// computed while its transformed input stays in the cache. Rounding errors are larger than those of sums of products by
// a few units. An infinite or NaN input makes the whole tile NaN.
#pragma once

#include <cstdint>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "base/page_allocator.h"
#include "simd/kernel_table.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

class Winograd final : public Op {
 public:
  // Whether a convolution of these weights is one of this kind.
  static bool suits(const ConvGeometry& geometry, std::int64_t columns);

  // `bias` is empty or has one value per row. Throws std::invalid_argument for a convolution that does not suit.
  Winograd(const SparseWeights& weights, std::vector<float> bias, const ConvGeometry& geometry, Activation activation,
           Layout layout, const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return layout_; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;
  std::int64_t weight_bytes() const override;

  std::int64_t tile() const { return tile_; }  // outputs along an axis
  std::int64_t rows() const { return rows_; }
  std::int64_t tile_floats() const { return tile_ * tile_ * kLanes; }  // of a row's sums

  // Sixteen tiles. In NCHWn16 they are of sixteen images at one position. In NCHW they are adjacent, and continue from
  // the end of a row of tiles with the next row and the next image.
  struct Block {
    struct Place {
      std::int64_t unit = 0;  // image, or group of 16
      std::int64_t y = 0;     // in tiles
      std::int64_t x = 0;
    };
    std::int64_t tiles = 1;  // how many of the 16 exist
    std::int64_t rows;       // of tiles, in an image
    std::int64_t columns;
    std::int64_t first;

    Place place(std::int64_t tile) const {
      const std::int64_t at = first + tile;
      return {at / (rows * columns), at / columns % rows, at % columns};
    }
  };

  // Where the outputs of a block go.
  struct Target {
    float* out;              // of the block's first image, or group of 16: `first_row` of its first channel
    const float* residual;   // likewise, or null
    std::int64_t plane;      // floats from a channel to the next
    std::int64_t unit;       // from an image to the next
    std::int64_t first_row;  // of the outputs that are stored
    std::int64_t end_row;
    bool non_temporal;
  };

  // Computes the outputs of a block of an input of this shape.
  void run_block(const Shape& shape, const Block& block, const float* in, const Target& target) const;

  // The transformed input of a block, in memory of the calling thread; valid until it calls for another block.
  const float* points_of(const Shape& shape, const Block& block, const float* in) const;
  // Bias and products of rows [row, row + kWinogradRows), tile_floats() each, in memory of the calling thread; valid
  // until it calls for other rows. Rows beyond the last have zero weights.
  float* sums_of(const float* points, std::int64_t row) const;

 private:
  void gather_tiles(const Shape& shape, const Block& block, const float* in, float* patch) const;
  void gather_images(const Shape& shape, const Block& block, const float* in, float* patch) const;
  void list_outputs(const Shape& shape, const Block& block, const Target& target, std::vector<Scatter>& scatters) const;

  std::int64_t rows_;
  std::int64_t channels_ = 0;
  WinogradPhases phases_{};  // of all channels
  std::int64_t tile_ = 0;
  ConvGeometry geometry_;
  Activation activation_;
  Layout layout_;
  const KernelTable& kernels_;
  std::vector<std::int64_t> column_places_;           // in a patch, of the pixels that a tile reads in a row
  std::vector<std::int64_t> row_places_;              // likewise, of the rows of pixels that it reads, by channel
  std::vector<float> bias_;                           // [groups of rows][8]
  std::vector<float, PageAllocator<float>> weights_;  // [groups of rows][6][phases][6][8]
};

}  // namespace sift::cpu
