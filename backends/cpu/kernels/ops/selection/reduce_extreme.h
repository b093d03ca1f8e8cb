// ReduceMax and ReduceMin.
#pragma once

#include "base/op.h"
#include "simd/kernel_table.h"
#include "simd/views/kernel_table.h"

namespace sift::cpu {

// The largest or smallest value along the height of an image: [n][c][1][w]. NaN is found as `ArgExtreme` finds it.
class ReduceExtreme final : public Op {
 public:
  ReduceExtreme(bool is_least, Layout layout, const KernelTable& kernels)
      : is_least_(is_least), layout_(layout), kernels_(view_kernels_of(kernels)) {}

  // Throws std::invalid_argument if there is no height.
  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return layout_; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  bool is_least_;
  Layout layout_;
  const ViewKernels& kernels_;
};

}  // namespace sift::cpu
