// Maximum pooling of tensors in NCHWn16 that remembers where each maximum comes from, and its gradient.
#pragma once

#include "simd/train/batch_norm.h"
#include "simd/train/lane_kernels.h"
#include "simd/train/window_taps.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// A byte for each lane of a vector.
typedef std::uint8_t LaneBytes __attribute__((vector_size(kVecLanes), may_alias));
typedef std::int8_t SignedLaneBytes __attribute__((vector_size(kVecLanes), may_alias));

inline void max_pool(MaxPoolArgs args) {
  const std::int64_t ahead_of_column = (args.ahead_blocks + args.row.size - 1) / args.row.size;
  with_flag(args.row.non_temporal, [&](auto non_temporal) {
    for (std::int64_t x = 0; x < args.row.size; ++x) {
      for (std::int64_t i = 0; i < ahead_of_column && args.ahead_blocks > 0; ++i) {
        __builtin_prefetch(args.ahead);
        args.ahead += kBlock;
        --args.ahead_blocks;
      }
      const PoolTaps& column = args.row.columns[x];
      const bool empty = args.row.row.count == 0 || column.count == 0;
      const std::int32_t first = empty ? kNoTap : args.row.row.tap + column.tap;
      for (int v = 0; v < kVecsPerBlock; ++v) {
        const float* const plane = args.x + v * kVecLanes;
        Vec most = splat(-__builtin_inff());
        IntVec from{};
        for_each_tap(args.row, column, [&](std::int64_t place, std::int32_t tap) {
          const Vec value = load(plane + place);
          const IntVec taken = (value > most) | (value != value);
          most = taken ? value : most;
          from = taken ? tap - IntVec{} : from;
        });
        const std::int64_t at = x * kBlock + v * kVecLanes;
        store_as<decltype(non_temporal)::value>(args.out + at, most);
        *reinterpret_cast<LaneBytes*>(args.taps + at) = __builtin_convertvector(from + first, LaneBytes);
      }
    }
  });
}

// The sum of dy of the windows that this position is the maximum of.
[[gnu::always_inline]] inline Vec joined_gradient(const PoolRow& row, const PoolTaps& column, const float* dy,
                                                  const std::uint8_t* taps) {
  const auto first = static_cast<std::uint8_t>(row.row.tap + column.tap);
  Vec sum{};
  for_each_tap(row, column, [&](std::int64_t place, std::int32_t tap) {
    const LaneBytes found = *reinterpret_cast<const LaneBytes*>(taps + place) - first;
    const auto chosen = reinterpret_cast<SignedLaneBytes>(found == static_cast<std::uint8_t>(tap) - LaneBytes{});
    sum += keep(load(dy + place), __builtin_convertvector(chosen, IntVec));
  });
  return sum;
}

inline void max_pool_gradient(MaxPoolGradientArgs args) {
  with_flag(args.row.non_temporal, [&](auto non_temporal) {
    for (std::int64_t x = 0; x < args.row.size; ++x) {
      for (int v = 0; v < kVecsPerBlock; ++v) {
        const Vec sum =
            joined_gradient(args.row, args.row.columns[x], args.dy + v * kVecLanes, args.taps + v * kVecLanes);
        store_as<decltype(non_temporal)::value>(args.dx + x * kBlock + v * kVecLanes, sum);
      }
    }
  });
}

}  // namespace sift::cpu::SIFT_ISA
