// Softmax of a row, and of sixteen rows that lie in the lanes.
#pragma once

#include "simd/activation.h"
#include "simd/vec.h"
#include "simd/views/kernel_table.h"

namespace sift::cpu::SIFT_ISA {

// exp(x - greatest): zero where it would be subnormal.
[[gnu::always_inline]] inline Vec softmax_weight(Vec difference) {
  return difference < -87.0F ? splat(0) : exp(difference);
}

inline float greatest_of(const float* x, std::int64_t count) {
  Vec most = splat(x[0]);
  std::int64_t i = 0;
  for (; i + kVecLanes <= count; i += kVecLanes) most = max(most, load_unaligned(x + i));
  float greatest = most[0];
  for (int lane = 1; lane < kVecLanes; ++lane) greatest = greatest < most[lane] ? most[lane] : greatest;
  for (; i < count; ++i) greatest = greatest < x[i] ? x[i] : greatest;
  return greatest;
}

// A row may hold NaN, or nothing but -inf: then the sum is NaN, and so is all that is divided by it.
inline void softmax_row(const SoftmaxArgs& args) {
  const float greatest = greatest_of(args.x, args.count);
  const std::int64_t whole = args.count / kVecLanes * kVecLanes;
  const int rest = static_cast<int>(args.count - whole);
  Vec sums{};
  for (std::int64_t i = 0; i < whole; i += kVecLanes) {
    const Vec weight = softmax_weight(load_unaligned(args.x + i) - greatest);
    if (!args.is_log) store_unaligned(args.out + i, weight);
    sums += weight;
  }
  float sum = 0;
  if (rest > 0) {
    const Vec weight = softmax_weight(load_lanes(args.x + whole, rest) - greatest);
    if (!args.is_log) store_lanes(args.out + whole, weight, rest);
    for (int lane = 0; lane < rest; ++lane) sum += weight[lane];
  }
  for (int lane = 0; lane < kVecLanes; ++lane) sum += sums[lane];
  const float shift = args.is_log ? __builtin_logf(sum) : 0.0F;
  const auto finished = [&](Vec x, Vec weight) { return args.is_log ? x - greatest - shift : weight / sum; };
  for (std::int64_t i = 0; i < whole; i += kVecLanes) {
    store_unaligned(args.out + i, finished(load_unaligned(args.x + i), load_unaligned(args.out + i)));
  }
  if (rest > 0) {
    const Vec value = finished(load_lanes(args.x + whole, rest), load_lanes(args.out + whole, rest));
    store_lanes(args.out + whole, value, rest);
  }
}

// Of the lanes that a vector holds.
inline void softmax_vector(const SoftmaxArgs& args, const float* x, float* out, int lanes) {
  const auto at = [&](const float* from, std::int64_t i) {
    const float* const place = from + i * args.stride;
    return lanes == kVecLanes ? load_unaligned(place) : load_lanes(place, lanes);
  };
  const auto put = [&](std::int64_t i, Vec value) {
    float* const place = out + i * args.stride;
    lanes == kVecLanes ? store_unaligned(place, value) : store_lanes(place, value, lanes);
  };
  Vec greatest = at(x, 0);
  for (std::int64_t i = 1; i < args.count; ++i) greatest = max(greatest, at(x, i));
  Vec sum{};
  for (std::int64_t i = 0; i < args.count; ++i) {
    const Vec weight = softmax_weight(at(x, i) - greatest);
    if (!args.is_log) put(i, weight);
    sum += weight;
  }
  if (!args.is_log) {
    const Vec factor = 1.0F / sum;
    for (std::int64_t i = 0; i < args.count; ++i) put(i, at(out, i) * factor);
    return;
  }
  for (int lane = 0; lane < lanes; ++lane) sum[lane] = __builtin_logf(sum[lane]);
  for (std::int64_t i = 0; i < args.count; ++i) put(i, at(x, i) - greatest - sum);
}

inline void softmax_lanes(const SoftmaxArgs& args) {
  for (int first = 0; first < args.lanes; first += kVecLanes) {
    const int left = args.lanes - first;
    softmax_vector(args, args.x + first, args.out + first, left < kVecLanes ? left : kVecLanes);
  }
}

}  // namespace sift::cpu::SIFT_ISA
