// Quotients of two arrays.
#pragma once

#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

inline void divide(const float* a, const float* b, float* out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kVecLanes <= count; i += kVecLanes)
    store_unaligned(out + i, load_unaligned(a + i) / load_unaligned(b + i));
  for (; i < count; ++i) out[i] = a[i] / b[i];
}

}  // namespace sift::cpu::SIFT_ISA
