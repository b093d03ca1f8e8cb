// Operators with a window over each channel separately: depthwise convolution and pooling.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "ops/windows/plane_masks.h"
#include "ops/windows/window_run.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// Rows of an image, [begin, end).
struct RowRange {
  std::int64_t begin;
  std::int64_t end;

  std::int64_t count() const { return end - begin; }
};

// Shared by the operators below; `geometry.groups` has no meaning here.
class WindowOp : public Op {
 public:
  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return layout_; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

  // The rows of an image of `height` rows that these rows of outputs read.
  RowRange rows_read(const RowRange& rows, std::int64_t height) const;

  // Computes these rows of outputs of one image in planes, of shape `shape`, on the calling thread. In the first
  // channel, the first of `rows_read` is at `in` and the first output at `out`; channels are `distances` apart.
  void run_rows(const Shape& shape, const RowRange& rows, const float* in, float* out,
                const PlaneDistances& distances) const;

 protected:
  WindowOp(WindowKind kind, const ConvGeometry& geometry, bool ceil_mode, Activation activation, Layout layout,
           const KernelTable& kernels);

 private:
  std::shared_ptr<const PlaneMasks> masks_for(const ConvGeometry& geometry, const Shape& in, const Shape& out) const;
  // For images in planes; `geometry` is the layer's, perhaps with another padding.
  PlaneMethod method_for(const ConvGeometry& geometry, const Shape& in, const Shape& out) const;

  WindowLayer layer_;
  bool ceil_mode_;
  Layout layout_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const PlaneMasks>> masks_;  // of the latest shapes

  friend class Depthwise;
  friend class AveragePool;
};

class Depthwise final : public WindowOp {
 public:
  // weights: a row of [kh][kw] per channel; bias: empty or [channels]. Throws std::invalid_argument if they do not fit.
  Depthwise(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias, const ConvGeometry& geometry,
            Activation activation, Layout layout, const KernelTable& kernels);

  const ConvGeometry& geometry() const { return layer_.geometry; }
};

class MaxPool final : public WindowOp {
 public:
  MaxPool(const ConvGeometry& geometry, bool ceil_mode, Layout layout, const KernelTable& kernels)
      : WindowOp(WindowKind::maximum, geometry, ceil_mode, {}, layout, kernels) {}
};

class AveragePool final : public WindowOp {
 public:
  AveragePool(const ConvGeometry& geometry, bool ceil_mode, bool count_padding, Layout layout,
              const KernelTable& kernels)
      : WindowOp(WindowKind::sum, geometry, ceil_mode, {}, layout, kernels) {
    layer_.count_padding = count_padding;
  }
};

}  // namespace sift::cpu
