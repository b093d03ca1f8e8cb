// Quads from tensors of floats or plain bytes, and back.
#pragma once

#include <cstdint>

#include "base/op.h"
#include "int8/quad_addition.h"
#include "simd/int8/kernel_table.h"

namespace sift::cpu {

// What a run finds of a tensor: the first words of dynamic_quads.
struct DynamicScale {
  float scale;
  std::int32_t zero_point;
};

DynamicScale read_dynamic_scale(const float* dynamic_quads);

// QuantizeLinear: clamp(round(x / scale) + zero_point), half to even.
class Quantize final : public Op {
 public:
  // `source`: nchw or nchw_n16.
  Quantize(Quantization quantization, Layout source, const Int8Kernels& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return source_; }
  Layout output_layout() const override { return Layout::quads; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  Quantization quantization_;
  Layout source_;
  const Int8Kernels& kernels_;
};

// DynamicQuantizeLinear: the scale and the zero point of all of the tensor's values and zero.
class DynamicQuantize final : public Op {
 public:
  DynamicQuantize(Layout source, const Int8Kernels& kernels) : source_(source), kernels_(kernels) {}

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return source_; }
  Layout output_layout() const override { return Layout::dynamic_quads; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  Layout source_;
  const Int8Kernels& kernels_;
};

// DequantizeLinear: scale * (x - zero_point).
class Dequantize final : public Op {
 public:
  Dequantize(Quantization quantization, Layout target, const Int8Kernels& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return Layout::quads; }
  Layout output_layout() const override { return target_; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  Quantization quantization_;
  Layout target_;
  const Int8Kernels& kernels_;
};

// From bytes to quads or from quads to bytes; s8 becomes u8 by adding 128, and back.
class ReorderBytes final : public Op {
 public:
  ReorderBytes(bool to_quads, bool is_signed, const Int8Kernels& kernels)
      : to_quads_(to_quads), is_signed_(is_signed), kernels_(kernels) {}

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return to_quads_ ? Layout::bytes : Layout::quads; }
  Layout output_layout() const override { return to_quads_ ? Layout::quads : Layout::bytes; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  bool to_quads_;
  bool is_signed_;
  const Int8Kernels& kernels_;
};

}  // namespace sift::cpu
