#include "int8/quad_addition.h"

#include <cmath>
#include <stdexcept>

namespace sift::cpu {

void check_scale(float scale) {
  if (!(scale > 0) || !std::isfinite(scale)) {
    throw std::invalid_argument("quantization: a scale must be positive and finite");
  }
}

QuadAddition ScaledAddition::factors() const {
  for (const Quantization& quantization : {own, other, sum}) check_scale(quantization.scale);
  const float own_factor = own.scale / sum.scale;
  const float other_factor = other.scale / sum.scale;
  const float zeros = std::fma(own_factor, own.zero_point, other_factor * other.zero_point);
  return {.own_factor = own_factor, .other_factor = other_factor, .shift = sum.zero_point - zeros};
}

}  // namespace sift::cpu
