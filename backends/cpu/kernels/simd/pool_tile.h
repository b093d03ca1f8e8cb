// A tile's share of the maxima of max pooling, for 16 images in lanes; see conv/pooled_winograd.h.
#pragma once

#include <limits>

#include "simd/activation.h"
#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

template <ActivationKind Kind>
struct PoolTile {
  static void run(PoolArgs args) {
    const std::uint32_t row_floats = args.tile * args.tile * kBlock;
    const auto activated = [&](Vec x) { return activate<Kind>(x, args.activation.a, args.activation.b); };
    // A monotone activation of the maximum is the maximum of the activations.
    constexpr bool kRises = Kind == ActivationKind::none || Kind == ActivationKind::clip;
    if constexpr (!kRises) {
      for (std::uint32_t i = 0; i < kWinogradRows * row_floats; i += kVecLanes) {
        store(args.sums + i, activated(load(args.sums + i)));
      }
    }
    // All rows at once, because a part has the same number of taps in each.
    for (std::uint32_t i = 0; i < args.count; ++i) {
      const PoolPart& part = args.parts[i];
      for (int v = 0; v < kVecsPerBlock; ++v) {
        const float* line = args.sums + part.source + v * kVecLanes;
        float* const out = args.out + part.target + v * kVecLanes;
        Vec most[kWinogradRows];
#pragma GCC unroll 8
        for (Vec& value : most) value = splat(std::numeric_limits<float>::lowest());  // the initial value of a maximum
        for (std::uint32_t y = 0; y < part.rows; ++y, line += args.tile * kBlock) {
          for (std::uint32_t x = 0; x < part.columns; ++x) {
#pragma GCC unroll 8
            for (std::uint32_t row = 0; row < kWinogradRows; ++row) {
              most[row] = max(most[row], load(line + row * row_floats + x * kBlock));
            }
          }
        }
#pragma GCC unroll 8
        for (std::uint32_t row = 0; row < kWinogradRows; ++row) {
          if (row >= args.rows) break;
          Vec value = kRises ? activated(most[row]) : most[row];
          if (!part.is_first) value = max(load(out + row * args.out_stride), value);
          store(out + row * args.out_stride, value);
        }
      }
    }
  }
};

inline void pool_tile(PoolArgs args) { with_activation<PoolTile>(args.activation.kind, args); }

}  // namespace sift::cpu::SIFT_ISA
