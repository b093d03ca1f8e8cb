// Batch normalization, ReLU and maximum pooling of tensors in NCHWn16 in one pass, and the gradient of all three.
#pragma once

#include "simd/train/batch_norm.h"
#include "simd/train/max_pool.h"

namespace sift::cpu::SIFT_ISA {

// The largest normalized value is that of the largest x, or of the smallest where the factor is below zero: rounding
// keeps the order. NaN in x makes the statistics of a batch NaN, and then all results.
template <bool Smallest, bool MayBeNan>
[[gnu::always_inline]] inline void batch_norm_pool_of(const BatchNormPoolArgs& args) {
  const IntVec no_tap = kNoTap - IntVec{};
  with_flag(args.relu, [&](auto relu) {
    with_flag(args.row.non_temporal, [&](auto non_temporal) {
      for (std::int64_t x = 0; x < args.row.size; ++x) {
        const PoolTaps& column = args.row.columns[x];
        for (int v = 0; v < kVecsPerBlock; ++v) {
          const float* const plane = args.x + v * kVecLanes;
          Vec chosen = splat(Smallest ? __builtin_inff() : -__builtin_inff());
          IntVec from{};
          for_each_tap(args.row, column, [&](std::int64_t place, std::int32_t tap) {
            const Vec value = load(plane + place);
            IntVec taken = Smallest ? value < chosen : value > chosen;
            if constexpr (MayBeNan) taken |= value != value;
            chosen = taken ? value : chosen;
            from = taken ? tap - IntVec{} : from;
          });
          from += args.row.row.tap + column.tap;
          Vec value = (chosen - args.mean) * args.scale + args.shift;
          if constexpr (decltype(relu)::value) {
            from = value <= 0.0F ? no_tap : from;
            value = max(value, Vec{});
          }
          const std::int64_t at = x * kBlock + v * kVecLanes;
          store_as<decltype(non_temporal)::value>(args.out + at, value);
          store_as<decltype(non_temporal)::value>(args.chosen + at, chosen);
          *reinterpret_cast<LaneBytes*>(args.taps + at) = __builtin_convertvector(from, LaneBytes);
        }
      }
    });
  });
}

inline void batch_norm_pool(BatchNormPoolArgs args) {
  with_flag(args.scale < 0, [&](auto smallest) {
    with_flag(!args.of_batch, [&](auto may_be_nan) {
      batch_norm_pool_of<decltype(smallest)::value, decltype(may_be_nan)::value>(args);
    });
  });
}

inline void batch_norm_pool_gradient(BatchNormPoolGradientArgs args) {
  const LaneMasks masks(args.lanes);
  with_flag(args.row.non_temporal, [&](auto non_temporal) {
    for (std::int64_t x = 0; x < args.row.size; ++x) {
      for (int v = 0; v < kVecsPerBlock; ++v) {
        const Vec dz =
            joined_gradient(args.row, args.row.columns[x], args.dy + v * kVecLanes, args.taps + v * kVecLanes);
        const std::int64_t at = x * kBlock + v * kVecLanes;
        const Vec dx = args.scale * (dz - args.dz_mean - (load(args.x + at) - args.mean) * args.slope);
        store_as<decltype(non_temporal)::value>(args.dx + at, keep(dx, masks.of[v]));
      }
    }
  });
}

}  // namespace sift::cpu::SIFT_ISA
