// The copies that a task of a weight gradient makes: operands of a slice to a panel, and gradients of a chunk's rows.
//
// Copies are listed before they are made, so that their sources can be prefetched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "base/prefetcher.h"
#include "simd/kernel_table.h"
#include "train/weight_gradient/gradient_packing.h"
#include "train/weight_gradient/gradient_tile.h"

namespace sift::cpu {

// The output pixels of a tile that are inside the tensor.
struct TilePlace {
  std::int64_t group;
  std::int64_t y;
  std::int64_t x;
  std::int64_t groups;
  std::int64_t h;
  std::int64_t w;
};

// All tiles of an output of this shape, in order.
std::vector<TilePlace> places_of_tiles(const GradientTile& tile, const Shape& out);

// The positions of the lines of a tile's pixels in a panel, and in the gradients of a row.
void list_lines(const GradientTile& tile, const TilePlace& place, const float* panel, const float* gradients,
                std::vector<GradientLine>& lines);

// A tensor in NCHWn16, from a channel on.
struct Channels {
  const float* data;
  Shape shape;
  std::int64_t first;
};

// The functions replace the content of `copies`.
void list_operands(const ConvGeometry& geometry, const GradientTile& tile, const TilePlace& place,
                   std::span<const GradientSlice::Planes> planes, const Channels& x, float* panel,
                   std::vector<BlockCopy>& copies);
void list_gradients(const GradientTile& tile, const TilePlace& place, std::int64_t rows, const Channels& dy, float* to,
                    std::vector<BlockCopy>& copies);

// Prefetches the sources of copies in portions.
class CopyPrefetcher {
 public:
  CopyPrefetcher() = default;
  explicit CopyPrefetcher(std::span<const BlockCopy> copies) : copies_(copies) {
    for (const BlockCopy& copy : copies) left_ += copy.from == nullptr ? 0 : copy.count;
  }

  // The first of this many equal steps.
  void step(std::int64_t steps) {
    std::int64_t count = ceil_div(left_, steps);
    left_ -= count;
    while (count > 0) {
      const BlockCopy& copy = copies_.front();
      const std::int64_t end = copy.from == nullptr ? 0 : std::min(copy.count, next_ + count);
      for (; next_ < end; ++next_, --count) {
        prefetch_line(reinterpret_cast<std::uintptr_t>(copy.from + next_ * copy.from_step));
      }
      if (copy.from == nullptr || next_ == copy.count) {
        copies_ = copies_.subspan(1);
        next_ = 0;
      }
    }
  }

 private:
  std::span<const BlockCopy> copies_;
  std::int64_t left_ = 0;  // blocks
  std::int64_t next_ = 0;  // of the first copy
};

}  // namespace sift::cpu
