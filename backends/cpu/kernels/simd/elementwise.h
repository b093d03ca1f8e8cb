// Elementwise functions of one or two arrays of the same size.
#pragma once

#include "simd/activation.h"
#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

template <ActivationKind Kind>
struct Elementwise {
  static void run(ElementwiseArgs args) {
    switch (args.kind) {
      case BinaryKind::first: return each(args, [&](Vec a, Vec) { return a * args.scale + args.shift; });
      case BinaryKind::add: return each(args, [](Vec a, Vec b) { return a + b; });
      case BinaryKind::subtract: return each(args, [](Vec a, Vec b) { return a - b; });
      case BinaryKind::multiply: return each(args, [](Vec a, Vec b) { return a * b; });
    }
  }

  template <typename Combine>
  [[gnu::always_inline]] static void each(const ElementwiseArgs& args, Combine combine) {
    if (args.repeats_b) return each_block(args, combine);
    const float* const b = args.b == nullptr ? args.a : args.b;
    std::int64_t i = 0;
    for (; i + kVecLanes <= args.count; i += kVecLanes) {
      const Vec value = combine(load_unaligned(args.a + i), load_unaligned(b + i));
      store_unaligned(args.out + i, activate<Kind>(value, args.activation.a, args.activation.b));
    }
    if (const int lanes = static_cast<int>(args.count - i); lanes > 0) {
      const Vec value = combine(load_lanes(args.a + i, lanes), load_lanes(b + i, lanes));
      store_lanes(args.out + i, activate<Kind>(value, args.activation.a, args.activation.b), lanes);
    }
  }

  template <typename Combine>
  [[gnu::always_inline]] static void each_block(const ElementwiseArgs& args, Combine combine) {
    Vec b[kVecsPerBlock];
#pragma GCC unroll 4
    for (int v = 0; v < kVecsPerBlock; ++v) b[v] = load_unaligned(args.b + v * kVecLanes);
    for (std::int64_t i = 0; i < args.count; i += kBlock) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) {
        const std::int64_t at = i + v * kVecLanes;
        const Vec value = combine(load_unaligned(args.a + at), b[v]);
        store_unaligned(args.out + at, activate<Kind>(value, args.activation.a, args.activation.b));
      }
    }
  }
};

inline void elementwise(ElementwiseArgs args) { with_activation<Elementwise>(args.activation.kind, args); }

}  // namespace sift::cpu::SIFT_ISA
