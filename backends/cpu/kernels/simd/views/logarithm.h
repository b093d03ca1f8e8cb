// The natural logarithm.
#pragma once

#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// log(2^e m) = e ln 2 + log m with m from sqrt(1/2) to sqrt(2) (Cephes logf).
inline Vec logarithm(Vec x) {
  // Numbers without a full mantissa are scaled by 2^23 first.
  const IntVec is_small = x < 1.17549435e-38F;
  const Vec scaled = is_small ? x * 8388608.0F : x;
  const IntVec bits = reinterpret_cast<IntVec>(scaled);
  IntVec e = (bits - 0x3f3504f3) >> 23;
  const Vec f = reinterpret_cast<Vec>(bits - (e << 23)) - 1.0F;
  e -= is_small & 23;
  const Vec n = __builtin_convertvector(e, Vec);
  const Vec z = f * f;
  Vec p = f * 7.0376836292e-2F - 1.1514610310e-1F;
  p = p * f + 1.1676998740e-1F;
  p = p * f - 1.2420140846e-1F;
  p = p * f + 1.4249322787e-1F;
  p = p * f - 1.6668057665e-1F;
  p = p * f + 2.0000714765e-1F;
  p = p * f - 2.4999993993e-1F;
  p = p * f + 3.3333331174e-1F;
  p = p * f * z + n * -2.12194440e-4F - 0.5F * z;
  const Vec value = (f + p) + n * 0.693359375F;
  const float infinity = __builtin_inff();
  const Vec beyond = x == 0.0F ? splat(-infinity) : x == infinity ? x : value;
  return x >= 0.0F ? beyond : splat(__builtin_nanf(""));
}

}  // namespace sift::cpu::SIFT_ISA
