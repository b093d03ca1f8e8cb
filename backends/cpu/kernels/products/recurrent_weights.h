// The recurrent weights of a layer, each direction's as products of few rows and of rows in lanes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "base/op.h"
#include "simd/kernel_table.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

// Packed in a form when that is first asked for; shared by the operators of all batches.
class RecurrentWeights {
 public:
  // `weights` is [directions][rows of each part, one after the other][hidden]; `bias` has one value per row, or none.
  // Throws std::invalid_argument if the sizes do not fit.
  RecurrentWeights(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias, std::int64_t directions,
                   std::vector<std::int64_t> parts, const KernelTable& kernels);

  std::int64_t hidden() const { return weights_->columns(); }
  std::int64_t directions() const { return directions_; }
  double density() const { return weights_->density(); }
  std::int64_t nnz() const { return weights_->nnz(); }
  std::int64_t bytes() const;
  // Whether products of few rows are lookups.
  bool looks_up() const { return looks_up_; }
  // Whether the second-level cache of one core holds all weights of a direction.
  bool fit_cache() const { return fit_cache_; }

  // states part^T + bias of each part of a direction, in planes or with 16 rows in the lanes.
  std::vector<std::shared_ptr<const Op>> products(std::int64_t direction, Layout layout) const;

  // Whether products in lanes add in the same order for these two numbers of rows.
  bool sums_alike(std::int64_t rows, std::int64_t others) const;

  // Gives up what the products in lanes were packed from, once they have run; it can be had from the weights again.
  void release_sources() const;

 private:
  using Products = std::vector<std::shared_ptr<const Op>>;  // [directions][parts]
  const Products& locked_products(Layout layout) const;
  std::shared_ptr<const Op> made(std::int64_t first, std::int64_t count, Layout layout) const;

  std::shared_ptr<const SparseWeights> weights_;
  std::vector<float> bias_;
  std::int64_t directions_;
  std::vector<std::int64_t> parts_;
  const KernelTable& kernels_;
  bool looks_up_ = false;
  bool fit_cache_ = false;
  mutable ForkSafeMutex mutex_;
  mutable Products few_;
  mutable Products lanes_;
  mutable std::map<std::pair<std::int64_t, std::int64_t>, bool> alike_;
};

}  // namespace sift::cpu
