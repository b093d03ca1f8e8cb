// Softmax over channels.
#pragma once

#include "base/op.h"
#include "simd/kernel_table.h"
#include "simd/views/kernel_table.h"

namespace sift::cpu {

// softmax(x), or its logarithm, over the channels of each row, or of each pixel of an image.
class Softmax final : public Op {
 public:
  Softmax(bool is_log, Layout layout, const KernelTable& kernels)
      : is_log_(is_log), layout_(layout), kernels_(view_kernels_of(kernels)) {}

  Shape output_shape(const Shape& in) const override { return in; }
  Layout input_layout() const override { return layout_; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  void run_pixels(ThreadPool& pool, const Shape& shape, const float* in, float* out) const;

  bool is_log_;
  Layout layout_;
  const ViewKernels& kernels_;
};

}  // namespace sift::cpu
