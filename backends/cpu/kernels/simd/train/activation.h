// Activations and their slopes, each lane by itself. What is finite gives finite numbers.
#pragma once

#include "simd/activation.h"
#include "simd/train/lane_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

inline constexpr std::int32_t kSign = -0x7fffffff - 1;
inline Vec bits(IntVec of) { return reinterpret_cast<Vec>(of); }
inline Vec absolute(Vec x) { return bits(reinterpret_cast<IntVec>(x) & ~kSign); }
inline Vec with_sign_of(Vec magnitude, Vec x) {
  return bits(reinterpret_cast<IntVec>(magnitude) | (reinterpret_cast<IntVec>(x) & kSign));
}

// exp(-magnitude) as `exp` has it, but zero from where it would be subnormal, so that infinity gives zero. The sum with
// 1.5 * 2^23 + 127 ends in the biased exponent.
inline Vec exp_of_minus(Vec magnitude) {
  constexpr float kMagic = 12582912.0F + 127.0F;
  const Vec shifted = magnitude * -1.44269504088896341F + kMagic;
  const Vec n = shifted - kMagic;
  const Vec r = n * 2.12194440e-4F - (n * 0.693359375F + magnitude);
  Vec p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  return magnitude > 87.3F ? Vec{} : p * bits(reinterpret_cast<IntVec>(shifted) << 23);
}

struct ReluFunction {
  static Vec value(Vec x, const LaneActivation&) { return max(x, Vec{}); }
  static Vec slope(Vec x, const LaneActivation&) { return x <= 0.0F ? Vec{} : splat(1); }
};

struct LeakyFunction {
  static Vec value(Vec x, const LaneActivation& f) { return x > 0.0F ? x : x * f.a; }
  static Vec slope(Vec x, const LaneActivation& f) { return x > 0.0F ? splat(1) : splat(f.a); }
};

struct ClipFunction {
  static Vec value(Vec x, const LaneActivation& f) { return min(max(x, splat(f.a)), splat(f.b)); }
  static Vec slope(Vec x, const LaneActivation& f) { return ((x >= f.a) & (x <= f.b)) ? splat(1) : Vec{}; }
};

inline Vec between_zero_and_one(Vec x) { return min(max(x, Vec{}), splat(1)); }

struct HardSigmoidFunction {
  static Vec line(Vec x, const LaneActivation& f) { return x * f.a + f.b; }
  static Vec value(Vec x, const LaneActivation& f) { return between_zero_and_one(line(x, f)); }
  static Vec slope(Vec x, const LaneActivation& f) {
    const Vec on = line(x, f);
    return ((on >= 0.0F) & (on <= 1.0F)) ? splat(f.a) : Vec{};
  }
};

struct HardSwishFunction {
  static Vec value(Vec x, const LaneActivation&) { return x * between_zero_and_one(x / 6.0F + 0.5F); }
  static Vec slope(Vec x, const LaneActivation&) {
    const Vec sixth = x / 6.0F;
    const Vec gate = sixth + 0.5F;
    return between_zero_and_one(gate) + (((gate >= 0.0F) & (gate <= 1.0F)) ? sixth : Vec{});
  }
};

// The sigmoids of x and -x, neither as a difference of numbers that are nearly equal.
struct Logistic {
  Vec e;
  Vec larger;
  Vec of_plus;
  Vec of_minus;

  explicit Logistic(Vec x) : e(exp_of_minus(absolute(x))), larger(1.0F / (1.0F + e)) {
    const Vec smaller = e * larger;
    of_plus = x < 0.0F ? smaller : larger;
    of_minus = x < 0.0F ? larger : smaller;
  }
  // Up to 3/4 the difference from 1 is exact, and errors of its factors cancel.
  Vec slope() const { return larger * (larger > 0.75F ? e * larger : 1.0F - larger); }
};

struct SigmoidFunction {
  static Vec value(Vec x, const LaneActivation&) {
    const Vec e = exp_of_minus(absolute(x));
    return (x < 0.0F ? e : splat(1)) / (1.0F + e);
  }
  static Vec slope(Vec x, const LaneActivation&) { return Logistic(x).slope(); }
};

struct TanhFunction {
  static Vec value(Vec x, const LaneActivation&) {
    const Vec e = exp_of_minus(2.0F * absolute(x));
    const Vec far = with_sign_of((1.0F - e) / (1.0F + e), x);
    return absolute(x) < 0.625F ? tanh_near_zero(x) : far;
  }
  static Vec slope(Vec x, const LaneActivation&) { return 4.0F * Logistic(x + x).slope(); }
};

struct SwishFunction {
  static Vec value(Vec x, const LaneActivation& f) { return x * SigmoidFunction::value(x * f.a, f); }
  static Vec slope(Vec x, const LaneActivation& f) {
    const Vec scaled = x * f.a;
    const Logistic gate(scaled);
    return gate.of_plus * (scaled * gate.of_minus + 1.0F);
  }
};

// exp(-x^2 / 2), and the normal distribution up to x.
//
// Beyond |x| lies the bell times a function that falls from 1/2 like 1 / |x|: a rational one of degrees 4 and 5 has a
// relative error of 5e-9 up to 13.3, from where the bell is zero. Near zero the distribution is 1/2 and an odd
// polynomial, of an error of 1e-9. The forms are those of Cody, "Rational Chebyshev Approximations for the Error
// Function", 1969; the coefficients are fitted for single precision.
struct Normal {
  Vec bell;
  Vec below;

  explicit Normal(Vec x) {
    const Vec z = x * x;
    bell = exp_of_minus(0.5F * z);
    // No power of what lies far outside runs over.
    const Vec t = min(absolute(x), splat(16));
    Vec p = t * 4.020174672e-3F + 3.998406915e-2F;
    p = p * t + 1.8130645792e-1F;
    p = p * t + 4.3568591980e-1F;
    p = p * t + 5.0000000248e-1F;
    Vec q = t * 1.0076940284e-2F + 1.0023257958e-1F;
    q = q * t + 4.6437953710e-1F;
    q = q * t + 1.1944829755F;
    q = q * t + 1.6692567586F;
    q = q * t + 1.0F;
    const Vec beyond = bell * (p / q);
    Vec odd = z * -7.6542095e-6F + 1.13486375e-4F;
    odd = odd * z - 1.186329944e-3F;
    odd = odd * z + 9.973323411e-3F;
    odd = odd * z - 6.649035992e-2F;
    odd = odd * z + 3.9894228012e-1F;
    const Vec far = x > 0.0F ? 1.0F - beyond : beyond;
    below = z < 1.0F ? odd * x + 0.5F : far;
  }
};

struct GeluFunction {
  static Vec value(Vec x, const LaneActivation&) { return x * Normal(x).below; }
  static Vec slope(Vec x, const LaneActivation&) {
    const Normal normal(x);
    return normal.below + x * normal.bell * 0.398942280401432678F;
  }
};

// x / 2 (1 + tanh(c (x + 0.044715 x^3))), c = sqrt(2 / pi): the tanh is that of a sigmoid of twice its argument.
struct GeluTanhFunction {
  static constexpr float kTwice = 1.59576912160573071F;
  static constexpr float kCubic = 0.044715F;
  // Beyond, the sigmoid is zero or one.
  static Vec square(Vec x) { return min(x * x, splat(1024)); }

  static Vec value(Vec x, const LaneActivation& f) {
    return x * SigmoidFunction::value(x * (kTwice * kCubic * square(x) + kTwice), f);
  }
  static Vec slope(Vec x, const LaneActivation&) {
    const Vec z = square(x);
    const Logistic gate(x * (kTwice * kCubic * z + kTwice));
    return gate.of_plus + x * gate.slope() * (3.0F * kTwice * kCubic * z + kTwice);
  }
};

// use(Function{}) of the kind.
template <typename Use>
[[gnu::always_inline]] inline void with_function(LaneActivationKind kind, Use use) {
  switch (kind) {
    case LaneActivationKind::relu: return use(ReluFunction{});
    case LaneActivationKind::leaky: return use(LeakyFunction{});
    case LaneActivationKind::clip: return use(ClipFunction{});
    case LaneActivationKind::hard_sigmoid: return use(HardSigmoidFunction{});
    case LaneActivationKind::hard_swish: return use(HardSwishFunction{});
    case LaneActivationKind::sigmoid: return use(SigmoidFunction{});
    case LaneActivationKind::tanh: return use(TanhFunction{});
    case LaneActivationKind::swish: return use(SwishFunction{});
    case LaneActivationKind::gelu: return use(GeluFunction{});
    case LaneActivationKind::gelu_tanh: return use(GeluTanhFunction{});
  }
}

inline void lane_activation(LaneActivationArgs args) {
  with_function(args.function.kind, [&](auto function) {
    using Function = decltype(function);
    with_flag(args.dy != nullptr, [&](auto is_gradient) {
      with_flag(args.non_temporal, [&](auto non_temporal) {
#pragma GCC unroll 2
        for (std::int64_t i = 0; i < args.count; i += kVecLanes) {
          const Vec x = load(args.x + i);
          Vec result;
          if constexpr (decltype(is_gradient)::value) {
            result = load(args.dy + i) * Function::slope(x, args.function);
          } else {
            result = Function::value(x, args.function);
          }
          store_as<decltype(non_temporal)::value>(args.out + i, result);
        }
      });
    });
  });
}

}  // namespace sift::cpu::SIFT_ISA
