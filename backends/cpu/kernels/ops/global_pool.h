// Pooling of whole images.
#pragma once

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// The mean, or the sum, over all pixels of a channel: [n][c][1][1].
class GlobalAveragePool final : public Op {
 public:
  GlobalAveragePool(Layout layout, const KernelTable& kernels, bool sums = false)
      : layout_(layout), kernels_(kernels), sums_(sums) {}

  Shape output_shape(const Shape& in) const override { return {in.n, in.c, 1, 1}; }
  Layout input_layout() const override { return layout_; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  Layout layout_;
  const KernelTable& kernels_;
  bool sums_;
};

}  // namespace sift::cpu
