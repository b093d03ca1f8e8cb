// The most multiply-adds that a core can do, with operands in registers and out of the first-level cache: what a
// kernel's speed is compared with.
#pragma once

#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Independent sums: enough for the latency of every core known, as many as fit the registers.
inline constexpr int kPeakSums = kRegisters >= 32 ? 16 : 10;

inline float total_of(const Vec (&sums)[kPeakSums]) {
  Vec total{};
  for (const Vec& sum : sums) total += sum;
  float result = 0;
  for (int lane = 0; lane < kVecLanes; ++lane) result += total[lane];
  return result;
}

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
  return total_of(sums);
}

// Each operand is loaded, as a sparse row has it, but nothing else is: no offsets, no weights, no ends of lists.
inline float fma_load_loop(const float* operands, std::int64_t iterations) {
  constexpr int kBlockFloats = kPeakSums * kVecLanes;
  constexpr int kBlocks = kLoopOperands / kBlockFloats;
  Vec sums[kPeakSums];
  for (int s = 0; s < kPeakSums; ++s) sums[s] = splat(static_cast<float>(s));
  const Vec scale = splat(0.5F);
  int block = 0;
  for (std::int64_t i = 0; i < iterations; ++i) {
    const float* from = operands + block * kBlockFloats;
    __asm__ volatile("" : "+r"(from));
    block = block + 1 == kBlocks ? 0 : block + 1;
#pragma GCC unroll 16
    for (int s = 0; s < kPeakSums; ++s) sums[s] += scale * load(from + s * kVecLanes);
  }
  return total_of(sums);
}

inline constexpr std::int64_t kPeakFlops = 2 * kPeakSums * kVecLanes;  // of an iteration

}  // namespace sift::cpu::SIFT_ISA
