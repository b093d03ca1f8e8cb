// ArgMax and ArgMin.
#pragma once

#include "base/op.h"
#include "simd/kernel_table.h"
#include "simd/views/kernel_table.h"

namespace sift::cpu {

// The place among the channels of the largest value of each row, or of each pixel of an image, or of the smallest:
// integers [n][1][h][w]. Of equal values it is that of the first, or of the last. As in onnxruntime, NaN is neither
// larger nor smaller than a number, so it is taken only where it is the first value.
class ArgExtreme final : public Op {
 public:
  ArgExtreme(bool is_least, bool takes_last, Layout layout, const KernelTable& kernels)
      : is_least_(is_least), takes_last_(takes_last), layout_(layout), kernels_(view_kernels_of(kernels)) {}

  // Throws std::invalid_argument if there are no channels, or 2**31.
  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return layout_; }
  Layout output_layout() const override { return Layout::integers; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  void run_rows(ThreadPool& pool, const Shape& shape, const float* in, float* out) const;
  void run_planes(ThreadPool& pool, const Shape& shape, const float* in, float* out) const;
  void run_lanes(ThreadPool& pool, const Shape& shape, const float* in, float* out) const;
  // Of `count` values in each of up to kExtremeLanes lanes; `places` has room for all of these.
  void find(const float* x, std::int64_t count, std::int64_t stride, std::int64_t lanes, std::int32_t* places) const;

  bool is_least_;
  bool takes_last_;
  Layout layout_;
  const ViewKernels& kernels_;
};

}  // namespace sift::cpu
