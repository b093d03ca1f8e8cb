// Activations of vectors. The kind is a template parameter, so that loops over a tile have no branch.
#pragma once

#include "base/activation.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// exp(x) by 2^n p(r), |r| <= ln 2 / 2: relative error below 2e-7 (Cephes expf). Clamped, so that it never overflows.
inline Vec exp(Vec x) {
  x = min(max(x, splat(-87.3F)), splat(88.3F));
  // Adding and subtracting 1.5 * 2^23 rounds to an integer.
  const Vec magic = splat(12582912.0F);
  const Vec shifted = x * 1.44269504088896341F + magic;
  const Vec n = shifted - magic;
  const Vec r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  Vec p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  // The integer is in the low bits of the shifted number.
  const IntVec exponent = (reinterpret_cast<IntVec>(shifted) + 127) << 23;
  return p * reinterpret_cast<Vec>(exponent);
}

inline Vec sigmoid(Vec x) { return reciprocal(1.0F + exp(-x)); }

// Up to 0.625 (Cephes tanhf).
inline Vec tanh_near_zero(Vec x) {
  const Vec z = x * x;
  Vec p = z * -5.70498872745e-3F + 2.06390887954e-2F;
  p = p * z - 5.37397155531e-2F;
  p = p * z + 1.33314422036e-1F;
  p = p * z - 3.33332819422e-1F;
  return p * z * x + x;
}

inline Vec tanh(Vec x) {
  // Near zero it cancels.
  const Vec far = 1.0F - 2.0F * reciprocal(exp(2.0F * x) + 1.0F);
  return x * x < 0.390625F ? tanh_near_zero(x) : far;
}

// x p(x^2) / q(x^2) up to 3.92, from where on it rounds to 1: relative error below 4e-7, nearly all of it of roundings.
// The coefficients are a least-squares fit, reweighted until its largest relative error was least (2e-8). The division
// runs beside the polynomials and takes less time than an estimate that is corrected.
inline Vec erf(Vec x) {
  const Vec z = x * x;
  Vec p = z * 2.0500869085862404E-6F + 2.8488268044372033E-4F;
  p = p * z + 3.7656160377600944E-3F;
  p = p * z + 5.27487190042023E-2F;
  p = p * z + 1.904064514974319E-1F;
  p = p * z + 1.128379146145604F;
  Vec q = z * 3.809170918091218E-5F + 1.162535267176653E-3F;
  q = q * z + 1.4969214310999348E-2F;
  q = q * z + 1.1410910369538778E-1F;
  q = q * z + 5.020760649979376E-1F;
  q = q * z + 1.0F;
  const Vec near = x * p / q;
  const Vec far = x < 0.0F ? splat(-1.0F) : splat(1.0F);
  return z >= 15.3664F ? far : near;
}

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): with a sigmoid instead of the tanh, nothing cancels.
inline Vec gelu_tanh(Vec x) { return x * sigmoid(x * (1.5957691216057308F + 0.0713548162726F * x * x)); }

// tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2); from 20 on it is 1.
inline Vec mish(Vec x) {
  const Vec e = exp(min(x, splat(20.0F)));
  const Vec n = e * (e + 2.0F);
  return x * (n / (n + 2.0F));
}

inline Vec elu(Vec x, float a, float b) { return x < 0.0F ? (exp(x) - 1.0F) * (a * b) : x * b; }

template <ActivationKind Kind>
[[gnu::always_inline]] inline Vec activate(Vec x, float a, float b) {
  if constexpr (Kind == ActivationKind::clip) return min(max(x, splat(a)), splat(b));
  if constexpr (Kind == ActivationKind::leaky) return x < 0.0F ? x * a : x;
  if constexpr (Kind == ActivationKind::hard_sigmoid) return min(max(x * a + b, splat(0)), splat(1));
  if constexpr (Kind == ActivationKind::hard_swish) {
    return x * min(max(x * (1.0F / 6.0F) + 0.5F, splat(0)), splat(1));
  }
  if constexpr (Kind == ActivationKind::sigmoid) return sigmoid(x);
  if constexpr (Kind == ActivationKind::silu) return x * sigmoid(x);
  if constexpr (Kind == ActivationKind::tanh) return tanh(x);
  if constexpr (Kind == ActivationKind::gelu) return 0.5F * x * (1.0F + erf(x * 0.70710678118654752F));
  if constexpr (Kind == ActivationKind::gelu_tanh) return gelu_tanh(x);
  if constexpr (Kind == ActivationKind::elu) return elu(x, a, b);
  if constexpr (Kind == ActivationKind::mish) return mish(x);
  return x;
}

// Calls Function<Kind>::run(arguments...) for the given kind.
template <template <ActivationKind> class Function, typename... Arguments>
inline void with_activation(ActivationKind kind, const Arguments&... arguments) {
  switch (kind) {
    case ActivationKind::none: return Function<ActivationKind::none>::run(arguments...);
    case ActivationKind::clip: return Function<ActivationKind::clip>::run(arguments...);
    case ActivationKind::leaky: return Function<ActivationKind::leaky>::run(arguments...);
    case ActivationKind::hard_sigmoid: return Function<ActivationKind::hard_sigmoid>::run(arguments...);
    case ActivationKind::hard_swish: return Function<ActivationKind::hard_swish>::run(arguments...);
    case ActivationKind::sigmoid: return Function<ActivationKind::sigmoid>::run(arguments...);
    case ActivationKind::silu: return Function<ActivationKind::silu>::run(arguments...);
    case ActivationKind::tanh: return Function<ActivationKind::tanh>::run(arguments...);
    case ActivationKind::gelu: return Function<ActivationKind::gelu>::run(arguments...);
    case ActivationKind::gelu_tanh: return Function<ActivationKind::gelu_tanh>::run(arguments...);
    case ActivationKind::elu: return Function<ActivationKind::elu>::run(arguments...);
    case ActivationKind::mish: return Function<ActivationKind::mish>::run(arguments...);
  }
}

}  // namespace sift::cpu::SIFT_ISA
