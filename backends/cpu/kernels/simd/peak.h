// The peak rate of multiply-adds of a core, with operands in registers or in the first-level cache: the reference for
// the speed of kernels.
#pragma once

#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Independent sums: as many as fit the registers, and enough for the latency of all known cores.
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
  for (int s = 0; s < kPeakSums; ++s) sums[s] = splat(static_cast<float>(s));  // equal sums would be merged
  const Vec scale = splat(0.5F);
  const Vec step = splat(1.0F);
  for (std::int64_t i = 0; i < iterations; ++i) {
    // The compiler must not merge iterations.
    __asm__ volatile("" : "+r"(i));
#pragma GCC unroll 16
    for (int s = 0; s < kPeakSums; ++s) sums[s] = sums[s] * scale + step;
  }
  return total_of(sums);
}

// As in a sparse row, each operand is loaded, but there are no offsets, weights and ends of lists.
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
