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
        IntVec from = first - IntVec{};
        for_each_tap(args.row, column, [&](std::int64_t place, std::int32_t tap) {
          const Vec value = load(plane + place);
          const IntVec taken = (value > most) | (value != value);
          most = taken ? value : most;
          from = taken ? tap - IntVec{} : from;
        });
        const std::int64_t at = x * kBlock + v * kVecLanes;
        store_as<decltype(non_temporal)::value>(args.out + at, most);
        *reinterpret_cast<LaneBytes*>(args.taps + at) = __builtin_convertvector(from, LaneBytes);
      }
    }
  });
}

inline void max_pool_gradient(MaxPoolGradientArgs args) {
  with_flag(args.row.non_temporal, [&](auto non_temporal) {
    for (std::int64_t x = 0; x < args.row.size; ++x) {
      for (int v = 0; v < kVecsPerBlock; ++v) {
        Vec sum{};
        for_each_tap(args.row, args.row.columns[x], [&](std::int64_t place, std::int32_t tap) {
          const std::int64_t at = place + v * kVecLanes;
          const LaneBytes taps = *reinterpret_cast<const LaneBytes*>(args.taps + at);
          const auto chosen = reinterpret_cast<SignedLaneBytes>(taps == static_cast<std::uint8_t>(tap) - LaneBytes{});
          sum += keep(load(args.dy + at), __builtin_convertvector(chosen, IntVec));
        });
        store_as<decltype(non_temporal)::value>(args.dx + x * kBlock + v * kVecLanes, sum);
      }
    }
  });
}

}  // namespace sift::cpu::SIFT_ISA
