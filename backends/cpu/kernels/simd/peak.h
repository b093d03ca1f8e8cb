// The most multiply-adds that a core can do: what a kernel's speed is compared with.
#pragma once

#include "../kernel_table.h"
#include "vec.h"

namespace sift::cpu::SIFT_ISA {

// Independent sums: enough for the latency of every core known, as many as fit the registers.
inline constexpr int kPeakSums = kRegisters >= 32 ? 16 : 10;

inline float fma_loop(std::int64_t iterations) {
  Vec sums[kPeakSums];
  for (int s = 0; s < kPeakSums; ++s) sums[s] = splat(static_cast<float>(s));  // alike, they would become one
  const Vec scale = splat(0.5F);
  const Vec step = splat(1.0F);
  for (std::int64_t i = 0; i < iterations; ++i) {
    // The compiler must not do several iterations in one.
    __asm__ volatile("" : "+r"(i));
#pragma GCC unroll 16
    for (int s = 0; s < kPeakSums; ++s) sums[s] = sums[s] * scale + step;
  }
  Vec total{};
  for (const Vec& sum : sums) total += sum;
  float result = 0;
  for (int lane = 0; lane < kVecLanes; ++lane) result += total[lane];
  return result;
}

inline constexpr std::int64_t kPeakFlops = 2 * kPeakSums * kVecLanes;  // of an iteration

}  // namespace sift::cpu::SIFT_ISA
