// activation(x weights^T + bias + second): x [m][columns], y [m][rows], row-major or with 16 rows of x in the lanes.
//
// Few rows of x are multiplied by the weights as they are packed, 16 at a time. For more, some rows of the weights at a
// time become lists in the second-level cache, or dense rows, by which all rows of x are multiplied: weights have one
// form in memory whatever comes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/activation.h"
#include "base/op.h"
#include "simd/kernel_table.h"
#include "weights/packed_rows.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

struct MatmulOptions {
  Activation activation;
  Layout layout = Layout::nchw;
  // Activations may be rounded to 16 bits for weights of int8 with at most a scale per row, where these lose at most
  // 2^-11 of the mean magnitude of a row of x.
  bool rounds_activations = false;
  Extension extension = Extension::amx;  // instructions beyond the instruction set, where the machine has them
};

class Matmul final : public Op {
 public:
  // Of weights that other operators share. Throws std::invalid_argument for a bias that has not one value per row.
  Matmul(std::shared_ptr<const PackedRows> weights, std::vector<float> bias, const MatmulOptions& options,
         const KernelTable& kernels);
  // Packs them, as float32. Keeps no reference to `weights`.
  Matmul(const SparseWeights& weights, std::vector<float> bias, Activation activation, const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return options_.layout; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;
  bool shares_input(const Op& other) const override;
  void run_shared(ThreadPool& pool, const Shape& shape, const float* in,
                  std::span<const SharedRun> runs) const override;
  std::int64_t weight_bytes() const override;

  // The weights, out of what was packed of them.
  std::shared_ptr<const SparseWeights> source() const;

 private:
  // Products of few rows of x, all of them with the same; a part are up to 16 of them.
  struct Few;
  PackedKind kind() const;
  std::int64_t most_few() const;
  static bool makes_lists(std::int64_t m, std::span<const SharedRun> runs);
  std::int64_t part_floats(std::int64_t m) const;
  Few operands_of(std::int64_t m, const float* in, bool lists, float* x, float* scales) const;
  void run_few(ThreadPool& pool, std::int64_t m, const float* in, std::span<const SharedRun> runs) const;
  struct Sums;
  void multiply_few(std::span<const Few> parts, const SharedRun& own, float* list_sums, std::int64_t begin,
                    std::int64_t end) const;
  void complete(const Few& few, const SharedRun& own, std::int64_t at, const Sums& sums, std::int64_t begin,
                std::int64_t end) const;
  void multiply_lists(const Few& few, float* sums, std::int64_t begin, std::int64_t end) const;

  // In NCHWn16, of `blocks` blocks of 16 rows of x.
  void run_many(ThreadPool& pool, std::int64_t blocks, const float* in, const float* second, float* out) const;
  struct Tiles;
  bool is_finite(ThreadPool& pool, std::int64_t blocks, const float* x) const;
  Tiles tiles_for(std::int64_t blocks, bool is_dense) const;
  void run_rows(const Tiles& tiles, std::int64_t first_row, const float* panels, const float* second, float* out) const;

  std::shared_ptr<const PackedRows> weights_;
  bool owns_weights_;
  std::vector<float> bias_;  // [rows, in whole fours]
  MatmulOptions options_;
  const KernelTable& kernels_;
  const PackedRowKernels& packed_kernels_;
};

}  // namespace sift::cpu
