// Functions of one array that are no activations.
#pragma once

#include "simd/activation.h"
#include "simd/vec.h"
#include "simd/views/kernel_table.h"
#include "simd/views/logarithm.h"
#include "simd/views/sine.h"

namespace sift::cpu::SIFT_ISA {

inline Vec square_root(Vec x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_sqrt_ps(reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vec>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x)));
#else
  for (int lane = 0; lane < kVecLanes; ++lane) x[lane] = __builtin_sqrtf(x[lane]);
  return x;
#endif
}

// As a square, it overflows to infinity and vanishes where it should.
inline Vec exponential(Vec x) {
  const Vec root = exp(0.5F * x);
  return root * root;
}

// log(1 + e^x) = max(x, 0) + log(1 + t), t = e^-|x|; the logarithm is 2 artanh(t / (2 + t)), whose series has a
// relative error below 2e-8 up to t = 1.
inline Vec softplus(Vec x) {
  const Vec t = exp(-max(x, -x));
  const Vec s = t / (2.0F + t);
  const Vec z = s * s;
  Vec p = z * (1.0F / 13) + 1.0F / 11;
  p = p * z + 1.0F / 9;
  p = p * z + 1.0F / 7;
  p = p * z + 1.0F / 5;
  p = p * z + 1.0F / 3;
  p = p * z + 1.0F;
  return max(x, splat(0)) + 2.0F * s * p;
}

template <typename Function>
[[gnu::always_inline]] inline void each(const float* a, float* out, std::int64_t count, Function function) {
  std::int64_t i = 0;
  for (; i + kVecLanes <= count; i += kVecLanes) store_unaligned(out + i, function(load_unaligned(a + i)));
  if (i < count) {
    const int rest = static_cast<int>(count - i);
    store_lanes(out + i, function(load_lanes(a + i, rest)), rest);
  }
}

inline void function_of(UnaryFunction kind, const float* a, float* out, std::int64_t count) {
  switch (kind) {
    case UnaryFunction::square_root: return each(a, out, count, [](Vec x) { return square_root(x); });
    case UnaryFunction::reciprocal: return each(a, out, count, [](Vec x) { return 1.0F / x; });
    case UnaryFunction::exponential: return each(a, out, count, [](Vec x) { return exponential(x); });
    case UnaryFunction::softplus: return each(a, out, count, [](Vec x) { return softplus(x); });
    case UnaryFunction::logarithm: return each(a, out, count, [](Vec x) { return logarithm(x); });
    case UnaryFunction::sine: return each(a, out, count, [](Vec x) { return sine<0>(x); });
    case UnaryFunction::cosine: return each(a, out, count, [](Vec x) { return sine<1>(x); });
  }
}

}  // namespace sift::cpu::SIFT_ISA
