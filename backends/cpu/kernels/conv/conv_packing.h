// The weights of a convolution, packed for a tiling and for all that pack alike.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "conv/tiling.h"
#include "weights/changing_values.h"
#include "weights/packed_weights.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

struct ConvPacking {
  // What it was made for.
  Tiling tiling;
  PanelShape panel;
  std::int64_t band_rows;
  std::vector<std::vector<PackedSlice>> groups;
  std::vector<double> band_costs;

  // Packs on the threads of `pool`, if there is one. Throws CodeMemoryError if the system refuses memory for code.
  ConvPacking(const SparseWeights& weights, const TilingProblem& problem, const Tiling& tiling, const PanelShape& panel,
              std::int64_t band_rows, ThreadPool* pool);
  // For another tiling that has lists, from lists: without all of the weights in between.
  ConvPacking(const ConvPacking& other, const TilingProblem& problem, const Tiling& tiling, const PanelShape& panel,
              std::int64_t band_rows, ThreadPool* pool);

  std::int64_t bytes() const;

  // The weights that it was made from, given the problem that it was made for, or one that packs alike. For weights
  // that change, the values are indices again.
  SparseWeights unpack(const TilingProblem& problem) const;

  // For weights that change: `keep_places` takes the packed values for indices, and `refresh` replaces them by the
  // values at these indices if those are newer.
  void keep_places();
  void refresh(ThreadPool& pool, const ChangingValues& values);

 private:
  std::uint64_t version_ = 0;  // of the values
};

}  // namespace sift::cpu
