// Sums of two quantized tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "base/op.h"
#include "simd/int8/kernel_table.h"

namespace sift::cpu {

// How bytes stand for numbers: scale * (byte - zero_point).
struct Quantization {
  float scale = 1;
  std::uint8_t zero_point = 0;
};

// Throws std::invalid_argument where the scale is not positive and finite.
void check_scale(float scale);

// `own` and `other`, of the operator and of its second operand, to the sum.
struct ScaledAddition {
  Quantization own;
  Quantization other;
  Quantization sum;

  // As onnxruntime computes it; throws std::invalid_argument for scales that are not positive and finite.
  QuadAddition factors() const;
};

// clamp(round(own factor + rests[channel])) of bytes: a number of each channel is added, and the sum gets another
// scale.
struct ChannelAddition {
  float factor;
  std::vector<float> rests;
};

}  // namespace sift::cpu
