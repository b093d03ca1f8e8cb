// Active weights in the order in which their gradients are summed.
//
// A chunk of rows meets slices of columns. In a slice, blocks of rows keep their sums in registers. As lists, rows are
// sorted by their number of weights, as in SELL-C-sigma, so that all of a block have equally many. As generated code,
// a block is rows with weights in the same columns, as far as there are such.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "jit/generated_gradient.h"
#include "simd/kernel_table.h"
#include "train/gradient_tile.h"

namespace sift::cpu {

// The active weights of a matrix, row after row, and where each has its gradient.
struct GradientWeights {
  std::int64_t rows;
  std::int64_t columns;
  std::vector<std::uint32_t> starts;  // [rows + 1]
  std::vector<std::uint32_t> columns_of;
  std::vector<std::uint32_t> places;

  std::int64_t nnz() const { return static_cast<std::int64_t>(columns_of.size()); }
};

struct GradientSlice {
  // Of adjacent channels; their planes are adjacent in the panel.
  struct Planes {
    std::int64_t channel;
    std::int64_t count;
    std::int64_t y;  // of the first pixel, from that of output pixel 0's first tap
    std::int64_t x;
  };
  static constexpr std::uint32_t kNoPlace = std::numeric_limits<std::uint32_t>::max();

  // Of generated code; the next one's follows it in memory.
  struct Piece {
    std::span<const std::byte> code;
    std::uint32_t blocks;
  };

  std::vector<Planes> planes;
  std::int64_t plane_count = 0;
  std::vector<Piece> pieces;      // empty for lists
  std::vector<GradientRun> runs;  // without pointers
  std::vector<std::uint32_t> offsets;
  std::vector<std::uint32_t> rows;
  std::vector<std::uint32_t> places;  // of the sums, in their order; kNoPlace for fillers
};

struct GradientChunk {
  std::int64_t row_begin;
  std::int64_t rows;
  std::vector<GradientSlice> slices;
};

struct PackedGradient {
  std::vector<GradientChunk> chunks;         // group of the convolution after group; no slice is without weights
  std::shared_ptr<const GradientCode> code;  // null for lists
};

// As code if `generates`, which throws CodeMemoryError where the system gives no memory for it.
PackedGradient pack_gradient(const GradientWeights& weights, const ConvGeometry& geometry, const GradientTile& tile,
                             const KernelTable& kernels, bool generates);

}  // namespace sift::cpu
