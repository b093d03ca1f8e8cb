// Stores accumulators to the output: adds the residual, applies the activation, and stores only lanes inside the
// tensor.
#pragma once

#include "simd/activation.h"
#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

template <ActivationKind Kind>
struct Epilogue {
  static void run(EpilogueArgs args) {
    const float a = args.activation.a;
    const float b = args.activation.b;
    for (std::uint32_t place = 0; place < args.rows; ++place) {
      const std::uint32_t row = args.order == nullptr ? place : args.order[place];
      const float* const acc = args.acc + row * args.acc_stride;
      float* const out = args.out + row * args.out_stride;
      const float* const residual = args.residual == nullptr ? nullptr : args.residual + row * args.out_stride;
      for (std::uint32_t e = 0; e < args.count; ++e) {
        const Scatter& entry = args.entries[e];
#pragma GCC unroll 4
        for (int v = 0; v < kVecsPerBlock; ++v) {
          const int lanes = static_cast<int>(entry.lanes) - v * kVecLanes;
          const std::ptrdiff_t at = entry.target + v * kVecLanes;
          if (lanes >= kVecLanes) {
            Vec sum = load_unaligned(acc + entry.source + v * kVecLanes);
            if (residual != nullptr) sum += load_unaligned(residual + at);
            sum = activate<Kind>(sum, a, b);
            if (args.non_temporal) {
              store_non_temporal(out + at, sum);
            } else {
              store_unaligned(out + at, sum);
            }
          } else if (lanes > 0) {
            Vec sum = load_lanes(acc + entry.source + v * kVecLanes, lanes);
            if (residual != nullptr) sum += load_lanes(residual + at, lanes);
            store_lanes(out + at, activate<Kind>(sum, a, b), lanes);
          }
        }
      }
    }
  }
};

inline void epilogue(EpilogueArgs args) { with_activation<Epilogue>(args.activation.kind, args); }

}  // namespace sift::cpu::SIFT_ISA
