// The function that is applied to a sum before it is stored: y = activation(sum + bias + residual).
#pragma once

#include <cstdint>

namespace sift::cpu {

enum class ActivationKind : std::uint8_t {
  none,
  clip,
  leaky,
  hard_sigmoid,
  hard_swish,
  sigmoid,
  silu,
  tanh,
  gelu,
  gelu_tanh,
  elu,
  mish
};

// clip: a is the lower bound, b the upper; relu is clip(0, inf). leaky: a is the slope below zero.
// hard_sigmoid: clip(a x + b, 0, 1). hard_swish: x clip(x/6 + 1/2, 0, 1). gelu: exact, by erf; gelu_tanh: its
// approximation by tanh. elu: b x, or b a (e^x - 1) below zero; b is 1 except for SELU. mish: x tanh(log(1 + e^x)).
struct Activation {
  ActivationKind kind = ActivationKind::none;
  float a = 0;
  float b = 0;
};

}  // namespace sift::cpu
