// Converts between the layouts of floats.
#pragma once

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

class Reorder final : public Op {
 public:
  Reorder(Layout from, const KernelTable& kernels) : from_(from), kernels_(kernels) {}

  Shape output_shape(const Shape& in) const override { return in; }
  Layout input_layout() const override { return from_; }
  Layout output_layout() const override { return from_ == Layout::nchw ? Layout::nchw_n16 : Layout::nchw; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  Layout from_;
  const KernelTable& kernels_;
};

}  // namespace sift::cpu
