// Quotients of two arrays, and square roots.
#pragma once

#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

inline void divide(const float* a, const float* b, float* out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kVecLanes <= count; i += kVecLanes)
    store_unaligned(out + i, load_unaligned(a + i) / load_unaligned(b + i));
  for (; i < count; ++i) out[i] = a[i] / b[i];
}

inline Vec root_of(Vec x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_sqrt_ps(reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vec>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x)));
#else
  for (int lane = 0; lane < kVecLanes; ++lane) x[lane] = __builtin_sqrtf(x[lane]);
  return x;
#endif
}

inline void square_root(const float* a, float* out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kVecLanes <= count; i += kVecLanes) store_unaligned(out + i, root_of(load_unaligned(a + i)));
  if (i < count) {
    const int rest = static_cast<int>(count - i);
    store_lanes(out + i, root_of(load_lanes(a + i, rest)), rest);
  }
}

}  // namespace sift::cpu::SIFT_ISA
