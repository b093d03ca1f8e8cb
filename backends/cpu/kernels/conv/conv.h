// Convolution and matrix product with constant weights, sparse or dense, with a fused epilogue.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/activation.h"
#include "base/fork_safe_mutex.h"
#include "base/op.h"
#include "conv/tile_positions.h"
#include "conv/tiling.h"
#include "weights/changing_values.h"
#include "weights/packed_weights.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

struct ConvOptions {
  ConvGeometry geometry;
  Activation activation;
  Layout layout = Layout::nchw_n16;
  std::optional<WeightForm> form;  // csr, csr_pairs, dense or code; none: by density
  Microarchitecture microarchitecture = detected_microarchitecture();  // that tiles are chosen for
  DType dtype = DType::float32;
  // Weights that change: the values of the SparseWeights are then places in these. Null: they are the weights.
  std::shared_ptr<const ChangingValues> values = nullptr;
};

// A call of a convolution that differs from that of an operator.
struct ConvCall {
  const float* in = nullptr;
  const float* residual = nullptr;  // null: none; where the output is
  const float* bias = nullptr;      // one value per row; null: that of the operator
  float* out = nullptr;
  const OutputGrid* grid = nullptr;  // where outputs go; null: they are a tensor
};

struct ConvPacking;

// y = activation(conv(x, weights) + bias + residual). A matrix product is the 1x1 convolution of h = w = 1.
//
// The weights are packed when an input shape first comes whose form has not been packed: generated code suits all
// shapes, the other forms a tiling, which depends on the height, the width, and, where images are small, on how many
// there are.
class Conv final : public Op {
 public:
  // `weights` may be shared between the plans of both layouts. `bias` is empty or has one value per row. Throws
  // std::invalid_argument for a geometry, weights and bias that do not fit each other.
  Conv(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias, const ConvOptions& options,
       const KernelTable& kernels);
  ~Conv() override;

  Shape output_shape(const Shape& in) const override;
  DType dtype() const override { return options_.dtype; }
  Layout input_layout() const override { return options_.layout; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

  void run(ThreadPool& pool, const Shape& shape, const ConvCall& call) const;

  std::int64_t weight_bytes() const override;

  // How often weights have been packed so far: once per form that its shapes were run in, if all are kept.
  std::int64_t times_packed() const;

  // Packs for inputs of this shape and this many threads now instead of in the first run.
  void prepare(const Shape& shape, int threads) const;

  // Gives up this operator's share in the SparseWeights that it was made from: 8 bytes per non-zero in addition to 6
  // packed. A shape that needs another packing is packed from one that is there, which takes about twice as long.
  // False, and nothing given up, before anything is packed.
  bool release_source() const;

  // The weights; from a packed form if the source was released.
  std::shared_ptr<const SparseWeights> source() const;

  // How this many threads run inputs of this shape; throws std::invalid_argument if there is no output.
  struct Description {
    WeightForm form;
    TileShape tile;
    std::int64_t slice_channels;
    std::int64_t packed_bytes;
  };
  Description describe(const Shape& shape, int threads, const OutputGrid* grid = nullptr) const;

 private:
  struct Problem;
  struct Plan;

  bool is_gathered() const;
  std::vector<float> padded_bias(std::span<const float> bias) const;
  Shape output_of(const Shape& shape, const OutputGrid* grid) const;
  Problem problem_of(const Shape& shape, const OutputGrid* grid, bool may_generate) const;
  // With a pool, weights are packed on its threads.
  std::shared_ptr<const Plan> plan_for(const Shape& shape, int threads, const OutputGrid* grid,
                                       ThreadPool* pool = nullptr) const;
  std::shared_ptr<const Plan> make_plan(const Shape& shape, int threads, const OutputGrid* grid, bool may_generate,
                                        ThreadPool* pool) const;
  std::shared_ptr<const SparseWeights> locked_source() const;
  // Of all plans, the latest first. `drop_packings` leaves those that fit into what packings may take, and their plans.
  std::vector<std::shared_ptr<const ConvPacking>> packings() const;
  void drop_packings() const;

  std::int64_t rows_;
  std::int64_t columns_;
  double density_;
  std::vector<float> bias_;  // [groups][padded_rows]
  ConvOptions options_;
  WeightForm form_;  // where no code is generated
  bool may_generate_;
  const KernelTable& kernels_;

  // Of a kernel too large for one panel: convolutions that are added up. Then nothing is planned here.
  std::vector<std::unique_ptr<Conv>> parts_;

  mutable ForkSafeMutex mutex_;
  mutable std::shared_ptr<const SparseWeights> weights_;      // null once released
  mutable std::vector<std::shared_ptr<const Plan>> planned_;  // the latest last; several shapes may have one packing
  mutable std::int64_t packed_ = 0;
};

}  // namespace sift::cpu
