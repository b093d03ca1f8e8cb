// Pooling of quads.
#pragma once

#include <cstdint>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "int8/quad_addition.h"
#include "simd/int8/kernel_table.h"

namespace sift::cpu {

// Windows over each channel by itself. Padding is not negative.
class QuadPool : public Op {
 public:
  QuadPool(const ConvGeometry& geometry, bool ceil_mode, const Int8Kernels& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return Layout::quads; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }

 protected:
  ConvGeometry geometry_;
  bool ceil_mode_;
  const Int8Kernels& kernels_;
};

class QuadMaxPool final : public QuadPool {
 public:
  using QuadPool::QuadPool;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;
};

// clamp(round(sum of (x - zero_point) * (input scale / (output scale * count)))) + zero_point, as onnxruntime's
// QLinearGlobalAveragePool; `count` leaves padding out unless it is counted.
class QuadAveragePool final : public QuadPool {
 public:
  QuadAveragePool(const ConvGeometry& geometry, bool ceil_mode, bool count_padding, Quantization in, Quantization out,
                  const Int8Kernels& kernels);
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  bool count_padding_;
  Quantization in_;
  Quantization out_;
};

// The mean of all pixels of an image.
class QuadGlobalAverage final : public Op {
 public:
  QuadGlobalAverage(Quantization in, Quantization out, const Int8Kernels& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return Layout::quads; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  Quantization in_;
  Quantization out_;
  const Int8Kernels& kernels_;
};

}  // namespace sift::cpu
