// Active weights in the order in which their gradients are summed.
//
// A chunk of rows is combined with slices of columns. In a slice, blocks of rows keep their sums in registers. For
// lists, rows are sorted by their number of weights, as in SELL-C-sigma, so that the rows of a block have equally many.
// For generated code, the rows of a block have weights in the same columns, as far as possible.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "jit/generated_gradient.h"
#include "simd/kernel_table.h"
#include "train/weight_gradient/gradient_tile.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

struct GradientSlice {
  // Of adjacent channels; their planes are adjacent in the panel.
  struct Planes {
    std::int64_t channel;
    std::int64_t count;
    std::int64_t y;  // of the first pixel, from that of output pixel 0's first tap
    std::int64_t x;
  };
  static constexpr std::uint32_t kNoPlace = std::numeric_limits<std::uint32_t>::max();

  // A piece of generated code; the next one follows it in memory.
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
  std::vector<std::uint32_t> places;  // of the sums, in their order; kNoPlace for padding
};

struct GradientChunk {
  std::int64_t row_begin;
  std::int64_t rows;
  std::vector<GradientSlice> slices;
};

struct PackedGradient {
  std::vector<GradientChunk> chunks;         // in the order of the convolution's groups; no slice is empty
  std::shared_ptr<const GradientCode> code;  // null for lists
};

// Packs weights whose values are places of ChangingValues, on the threads of `pool`. With `generates` the result is
// code; throws CodeMemoryError if the system refuses memory for it.
PackedGradient pack_gradient(const SparseWeights& weights, std::int64_t groups, const GradientTile& tile,
                             const KernelTable& kernels, bool generates, ThreadPool& pool);

}  // namespace sift::cpu
