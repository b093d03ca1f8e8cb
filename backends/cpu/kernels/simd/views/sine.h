// Sine and cosine.
#pragma once

#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

[[gnu::always_inline]] inline bool any_lane(IntVec mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask)) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8(reinterpret_cast<__m256i>(mask)) != 0;
#else
  std::int32_t all = 0;
  for (int lane = 0; lane < kVecLanes; ++lane) all |= mask[lane];
  return all != 0;
#endif
}

// sin(x + quarters pi/2): with x = n pi/2 + r and |r| <= pi/4, it is sin r or cos r, or one of the two negated
// (Cephes sinf). Up to here, the product of n and the first part of pi/2 is exact; larger values are the library's.
inline constexpr float kLargestAngle = 8192.0F;

template <int Quarters>
inline Vec sine(Vec x) {
  // Adding and subtracting 1.5 * 2^23 rounds to an integer, which is in the low bits of the sum.
  const Vec magic = splat(12582912.0F);
  const Vec shifted = x * 0.63661977236758134F + magic;
  const Vec n = shifted - magic;
  const Vec r = ((x - n * 1.5703125F) - n * 4.837512969970703125e-4F) - n * 7.54978995489188216e-8F;
  const IntVec quadrant = reinterpret_cast<IntVec>(shifted) + Quarters;
  const Vec z = r * r;
  Vec s = z * -1.9515295891e-4F + 8.3321608736e-3F;
  s = s * z - 1.6666654611e-1F;
  s = s * z * r + r;
  Vec c = z * 2.443315711809948e-5F - 1.388731625493765e-3F;
  c = c * z + 4.166664568298827e-2F;
  c = c * z * z - 0.5F * z + 1.0F;
  const Vec magnitude = (quadrant & 1) == 0 ? s : c;
  Vec value = (quadrant & 2) == 0 ? magnitude : -magnitude;
  const IntVec is_large = max(x, -x) > kLargestAngle;
  if (any_lane(is_large)) [[unlikely]] {
    for (int lane = 0; lane < kVecLanes; ++lane) {
      if (is_large[lane]) value[lane] = Quarters == 0 ? __builtin_sinf(x[lane]) : __builtin_cosf(x[lane]);
    }
  }
  return value;
}

}  // namespace sift::cpu::SIFT_ISA
