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
  // For weights that change: the values of the SparseWeights are indices into these. Null: they are the weights.
  std::shared_ptr<const ChangingValues> values = nullptr;
};

// The arguments of a run that can replace the operator's own bias and output tensor.
struct ConvCall {
  const float* in = nullptr;
  const float* residual = nullptr;  // laid out like the output; null: none
  const float* bias = nullptr;      // one value per row; null: that of the operator
  float* out = nullptr;
  const OutputGrid* grid = nullptr;  // where outputs go; null: they are a tensor
};

// A run of a pointwise convolution on some pixels of one image in planes.
struct PixelCall {
  std::int64_t first;  // a multiple of kLanes
  std::int64_t end;
  std::int64_t most;      // pixels of the longest call: the tile is chosen for it
  const float* in;        // pixel 0 of the first channel
  std::int64_t in_plane;  // floats from a channel to the next one; all of them can be read
  const float* residual;  // laid out like `out`; null: none
  float* out;             // where the first pixel of the first channel goes
  std::int64_t out_plane;
};

struct ConvJob;
struct ConvPacking;

// y = activation(conv(x, weights) + bias + residual). A matrix product is the 1x1 convolution of h = w = 1.
//
// The weights are packed when the first input shape arrives that needs another packing. Generated code suits all
// shapes. Other forms suit a tiling, which depends on the height, the width and, for small images, the number of
// images.
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

  // Whether `run_pixels` may be called: pixels of images in planes are independent of each other.
  bool runs_pixels() const;
  // Runs on the calling thread. The sums have the order that `run` has.
  void run_pixels(const PixelCall& call) const;

  std::int64_t weight_bytes() const override;

  // How often weights have been packed so far: once per form in use, as long as no packing is dropped.
  std::int64_t times_packed() const;

  // Packs now, and not in the first run, for inputs of this shape and this many threads; on the threads of `pool`, if
  // there is one.
  void prepare(const Shape& shape, int threads, ThreadPool* pool) const override;

  // Releases this operator's reference to the SparseWeights that it was made from: 8 bytes per non-zero, in addition to
  // the 6 of a packing. Later packings are made from an existing one, which takes about twice as long. Returns false
  // and releases nothing if nothing is packed yet.
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

  // The order in which sums of a pointwise convolution are made for inputs of this shape, by any number of threads.
  // Where it is the same for two shapes, outputs have the same bits. Packs nothing.
  struct SumOrder {
    WeightForm form;
    std::int64_t slice_channels;
    bool operator==(const SumOrder&) const = default;
  };
  SumOrder sum_order(const Shape& shape) const;

 private:
  struct Problem;
  struct Plan;

  bool is_gathered() const;
  std::vector<float> padded_bias(std::span<const float> bias) const;
  Shape output_of(const Shape& shape, const OutputGrid* grid) const;
  Problem problem_of(const Shape& shape, int threads, const OutputGrid* grid, bool may_generate) const;
  // With a pool, weights are packed on its threads.
  std::shared_ptr<const Plan> plan_for(const Shape& shape, int threads, const OutputGrid* grid,
                                       ThreadPool* pool = nullptr) const;
  std::shared_ptr<const Plan> make_plan(const Shape& shape, int threads, const OutputGrid* grid, bool may_generate,
                                        ThreadPool* pool) const;
  // What all tiles of a group have in common. It refers to `plan` and `tensors`.
  ConvJob job_of(const Plan& plan, const ConvTensors& tensors, std::int64_t group) const;
  std::shared_ptr<const SparseWeights> locked_source() const;
  // The packings of all plans, the latest first. `drop_packings` drops the oldest beyond the limit, with their plans.
  std::vector<std::shared_ptr<const ConvPacking>> packings() const;
  void drop_packings() const;

  std::int64_t rows_;
  std::int64_t columns_;
  double density_;
  std::vector<float> bias_;  // [groups][padded_rows]
  ConvOptions options_;
  WeightForm form_;  // if no code is generated
  bool may_generate_;
  const KernelTable& kernels_;

  // If the kernel is too large for one panel: convolutions whose sum this is. Nothing else is planned then.
  std::vector<std::unique_ptr<Conv>> parts_;

  mutable ForkSafeMutex mutex_;
  mutable std::shared_ptr<const SparseWeights> weights_;      // null once released
  mutable std::vector<std::shared_ptr<const Plan>> planned_;  // the latest last; plans may share a packing
  mutable std::int64_t packed_ = 0;
};

}  // namespace sift::cpu
