// Layer and RMS normalization: mean and variance over the channels of a row, or of sixteen rows or pixels in the lanes.
#pragma once

#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Number of partial sums: they are more accurate than a single sum, and no addition waits for the previous one.
inline constexpr int kSums = 4;

// Sum of use(i) for 0 <= i < count.
template <typename Sum = Vec, typename Use>
[[gnu::always_inline]] inline Sum sum_of(std::int64_t count, Use use) {
  Sum sums[kSums]{};
  std::int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s) sums[s] += use(i + s);
  }
  for (; i < count; ++i) sums[0] += use(i);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

inline Vec inverse_root(Vec x) {
#pragma GCC unroll 16
  for (int lane = 0; lane < kVecLanes; ++lane) x[lane] = 1.0F / __builtin_sqrtf(x[lane]);
  return x;
}

inline float sum_of_lanes(Vec x) {
  float sum = 0;
  for (int lane = 0; lane < kVecLanes; ++lane) sum += x[lane];
  return sum;
}

inline void normalize_lanes(NormalizeArgs args) {
  const float count = static_cast<float>(args.channels);
  for (int v = 0; v < kVecsPerBlock; ++v) {
    const auto at = [&](std::int64_t c) { return c * args.stride + v * kVecLanes; };
    Vec mean{};
    if (args.is_centered) {
      mean = sum_of(args.channels, [&](std::int64_t c) { return load_unaligned(args.x + at(c)); }) / count;
    }
    const Vec squares = sum_of(args.channels, [&](std::int64_t c) {
      const Vec difference = load_unaligned(args.x + at(c)) - mean;
      return difference * difference;
    });
    const Vec factor = inverse_root(max(squares / count, Vec{} + args.least) + args.epsilon);
    for (std::int64_t c = 0; c < args.channels; ++c) {
      const Vec x = load_unaligned(args.x + at(c));
      store_unaligned(args.out + c * args.out_stride + v * kVecLanes,
                      (x - mean) * factor * args.scale[c] + args.shift[c]);
    }
  }
}

inline void normalize_row(NormalizeArgs args) {
  const std::int64_t whole = args.channels / kVecLanes;
  const std::int64_t rest = whole * kVecLanes;
  const float count = static_cast<float>(args.channels);
  float mean = 0;
  if (args.is_centered) {
    float sum = sum_of_lanes(sum_of(whole, [&](std::int64_t i) { return load_unaligned(args.x + i * kVecLanes); }));
    for (std::int64_t c = rest; c < args.channels; ++c) sum += args.x[c];
    mean = sum / count;
  }
  float squares = sum_of_lanes(sum_of(whole, [&](std::int64_t i) {
    const Vec difference = load_unaligned(args.x + i * kVecLanes) - mean;
    return difference * difference;
  }));
  for (std::int64_t c = rest; c < args.channels; ++c) squares += (args.x[c] - mean) * (args.x[c] - mean);
  const float variance = squares / count < args.least ? args.least : squares / count;
  const float factor = 1.0F / __builtin_sqrtf(variance + args.epsilon);
  for (std::int64_t i = 0; i < rest; i += kVecLanes) {
    const Vec scaled = (load_unaligned(args.x + i) - mean) * factor * load_unaligned(args.scale + i);
    store_unaligned(args.out + i, scaled + load_unaligned(args.shift + i));
  }
  for (std::int64_t c = rest; c < args.channels; ++c) {
    args.out[c] = (args.x[c] - mean) * factor * args.scale[c] + args.shift[c];
  }
}

}  // namespace sift::cpu::SIFT_ISA
