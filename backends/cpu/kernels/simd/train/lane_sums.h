// Sums of a channel over all pixels and images.
#pragma once

#include "simd/train/batch_norm.h"

namespace sift::cpu::SIFT_ISA {

// Each lane by itself, with the bits that rounding took from the sum beside it (Kahan): there may be millions of terms,
// and a run of one pixel would not pay for a sum over its lanes.
inline void add_runs(const float* x, std::int64_t channels, std::int64_t blocks, int lanes, float* sums) {
  const LaneMasks masks(lanes);
  for (std::int64_t c = 0; c < channels; ++c, x += blocks * kBlock, sums += 2 * kBlock) {
    for (int v = 0; v < kVecsPerBlock; ++v) {
      Vec sum = load(sums + v * kVecLanes);
      Vec lost = load(sums + kBlock + v * kVecLanes);
      for (std::int64_t first = 0; first < blocks; first += kChunk) {
        const std::int64_t size = blocks - first < kChunk ? blocks - first : kChunk;
        const float* const chunk = x + first * kBlock + v * kVecLanes;
        const Vec part = keep(sum_of(size, [&](std::int64_t i) { return load(chunk + i * kBlock); }), masks.of[v]);
        const Vec term = part - lost;
        const Vec next = sum + term;
        lost = (next - sum) - term;
        sum = next;
      }
      store(sums + v * kVecLanes, sum);
      store(sums + kBlock + v * kVecLanes, lost);
    }
  }
}

}  // namespace sift::cpu::SIFT_ISA
