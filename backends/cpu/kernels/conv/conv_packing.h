// The weights of a convolution, packed for the tilings that are alike.
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
  // That it was made for.
  Tiling tiling;
  PanelShape panel;
  std::int64_t band_rows;
  std::vector<std::vector<PackedSlice>> groups;
  std::vector<double> band_costs;

  // On the threads of `pool`, if there is one. Throws CodeMemoryError where the system gives no memory for code.
  ConvPacking(const SparseWeights& weights, const TilingProblem& problem, const Tiling& tiling, const PanelShape& panel,
              std::int64_t band_rows, ThreadPool* pool);

  std::int64_t bytes() const;

  // What it was made from, for the problem that it was made for or one that is packed alike; values that change are
  // their places again.
  SparseWeights unpack(const TilingProblem& problem) const;

  // For weights that change: takes the values for their places, and fetches values if they are newer than those here.
  void keep_places();
  void refresh(ThreadPool& pool, const ChangingValues& values);

 private:
  std::uint64_t version_ = 0;  // of the values
};

}  // namespace sift::cpu
