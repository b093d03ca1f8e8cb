// Operators on quads that look at one byte, or at two of the same place.
#pragma once

#include <array>
#include <cstdint>

#include "base/op.h"
#include "int8/quad_addition.h"
#include "simd/int8/kernel_table.h"

namespace sift::cpu {

// Takes an input of any shape.
class QuadwiseOp : public Op {
 public:
  explicit QuadwiseOp(const Int8Kernels& kernels) : kernels_(kernels) {}

  Shape output_shape(const Shape& in) const override { return in; }
  Layout input_layout() const override { return Layout::quads; }

 protected:
  const Int8Kernels& kernels_;
};

// onnxruntime's QLinearAdd; results are clamped to [low, high].
class QuadAdd final : public QuadwiseOp {
 public:
  QuadAdd(const ScaledAddition& addition, std::uint8_t low, std::uint8_t high, const Int8Kernels& kernels)
      : QuadwiseOp(kernels), addition_(addition.factors()), low_(low), high_(high) {}

  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  QuadAddition addition_;
  std::uint8_t low_;
  std::uint8_t high_;
};

// Each byte's entry in a table: activations, other scales and zero points, clamping.
class QuadTable final : public QuadwiseOp {
 public:
  QuadTable(const std::array<std::uint8_t, 256>& table, const Int8Kernels& kernels)
      : QuadwiseOp(kernels), table_(table) {}

  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  std::array<std::uint8_t, 256> table_;
};

// Channels [begin, end) of the input to those from `first` on of `total`; the output's others stay as they are.
class QuadChannels final : public Op {
 public:
  // Throws std::invalid_argument if there is no such range.
  QuadChannels(std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t total);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return Layout::quads; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  std::int64_t begin_;
  std::int64_t end_;
  std::int64_t first_;
  std::int64_t total_;
};

}  // namespace sift::cpu
