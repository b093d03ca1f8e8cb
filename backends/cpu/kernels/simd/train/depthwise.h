// Depthwise convolution of tensors in NCHWn16, its input gradient, and the sums of its weight gradient.
#pragma once

#include "simd/train/lane_kernels.h"
#include "simd/train/window_taps.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

inline void depthwise(DepthwiseArgs args) {
  with_flag(args.row.non_temporal, [&](auto non_temporal) {
    for (std::int64_t x = 0; x < args.row.size; ++x) {
      const PoolTaps& column = args.row.columns[x];
      const float* const weight = args.weight + args.row.row.tap + column.tap;
      for (int v = 0; v < kVecsPerBlock; ++v) {
        float* const out = args.out + x * kBlock + v * kVecLanes;
        const float* const plane = args.x + v * kVecLanes;
        Vec sum = args.adds ? load(out) : splat(args.bias);
        for_each_tap(args.row, column,
                     [&](std::int64_t place, std::int32_t tap) { sum += splat(weight[tap]) * load(plane + place); });
        store_as<decltype(non_temporal)::value>(out, sum);
      }
    }
  });
}

// Four sums, so that none waits for the one before.
[[gnu::always_inline]] inline Vec product_sum(const float* x, std::int64_t x_step, const float* dy,
                                              std::int64_t count) {
  Vec sums[4]{};
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int j = 0; j < 4; ++j, x += x_step, dy += kBlock) sums[j] += load(x) * load(dy);
  }
  for (; i < count; ++i, x += x_step, dy += kBlock) sums[0] += load(x) * load(dy);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

inline void depthwise_gradient(const DepthwiseGradientArgs& args) {
  const std::int64_t x_step = args.stride_w * kBlock;
  for (std::int64_t tap_y = 0; tap_y < args.kernel_h; ++tap_y) {
    const DepthwiseReach& rows = args.rows[tap_y];
    const float* x = args.x + rows.input * args.x_pitch;
    const float* dy = args.dy + rows.first * args.dy_pitch;
    float* const sums = args.sums + tap_y * args.kernel_w * kBlock;
    for (std::int64_t y = 0; y < rows.count; ++y, x += args.stride_h * args.x_pitch, dy += args.dy_pitch) {
      for (std::int64_t tap_x = 0; tap_x < args.kernel_w; ++tap_x) {
        const DepthwiseReach& columns = args.columns[tap_x];
        for (int v = 0; v < kVecsPerBlock; ++v) {
          float* const sum = sums + tap_x * kBlock + v * kVecLanes;
          store(sum, load(sum) + product_sum(x + columns.input * kBlock + v * kVecLanes, x_step,
                                             dy + columns.first * kBlock + v * kVecLanes, columns.count));
        }
      }
    }
  }
}

}  // namespace sift::cpu::SIFT_ISA
