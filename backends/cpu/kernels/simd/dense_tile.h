// Products of dense rows of weights and blocks of 16 tokens, whose sums stay in registers; see
// products/dense_product.h.
#pragma once

#include "simd/activation.h"
#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// As many as the registers hold, in addition to a block of operands and a weight.
inline constexpr int kDenseRows = kRegisters == 32 ? (kVecsPerBlock == 1 ? 28 : 6) : (kVecsPerBlock == 2 ? 6 : 2);

inline void dense_tile(const DenseTileArgs& args) {
  Vec sum[kDenseRows][kVecsPerBlock]{};
  const float* weights = args.weights;
  const float* operands = args.operands;
  const float* ahead = args.ahead;
  const float* const ahead_end = args.ahead + args.ahead_lines * kBlock;
#pragma GCC unroll 1
  for (std::int64_t i = 0; i < args.depth; ++i) {
    Vec x[kVecsPerBlock];
#pragma GCC unroll 4
    for (int v = 0; v < kVecsPerBlock; ++v) x[v] = load(operands + v * kVecLanes);
#pragma GCC unroll 28
    for (int r = 0; r < kDenseRows; ++r) {
      const Vec weight = splat(weights[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) sum[r][v] += weight * x[v];
    }
    if (ahead != ahead_end) {
      __builtin_prefetch(ahead, 0, 2);
      ahead += kBlock;
    }
    weights += kDenseRows;
    operands += kBlock;
  }
  for (const DenseTileArgs::Target& target : args.targets) {
    if (target.sums == nullptr) continue;
    const Vec sign = splat(target.sign);
#pragma GCC unroll 28
    for (int r = 0; r < kDenseRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) {
        float* const at = target.sums + r * kBlock + v * kVecLanes;
        store(at, load(at) + sign * sum[r][v]);
      }
    }
  }
}

inline void combine(CombineArgs args) {
  for (int v = 0; v < kVecsPerBlock; ++v) {
    const Vec first_scale = load(args.first_scales + v * kVecLanes);
    const Vec second_scale = load(args.second_scales + v * kVecLanes);
    for (std::int64_t i = v * kVecLanes; i < args.count; i += kBlock) {
      store(args.out + i, load(args.first + i) * first_scale + load(args.second + i) * second_scale);
    }
  }
}

inline void lane_magnitudes(const float* in, std::int64_t count, float* out) {
  for (int v = 0; v < kVecsPerBlock; ++v) {
    Vec most{};
    Vec nothing{};  // or NaN
    for (std::int64_t i = v * kVecLanes; i < count; i += kBlock) {
      const Vec x = load(in + i);
      most = max(most, max(x, -x));
      nothing += x * 0.0F;
    }
    store(out + v * kVecLanes, most + nothing);
  }
}

template <ActivationKind Kind>
struct DenseFinish {
  static void run(DenseFinishArgs args) {
    Vec scales[kVecsPerBlock];
    for (int v = 0; v < kVecsPerBlock; ++v) scales[v] = load(args.lane_scales + v * kVecLanes);
    for (std::int64_t row = 0; row < args.rows; ++row) {
      const Vec scale = splat(args.row_scales[row]);
      const Vec bias = splat(args.bias[row]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) {
        const std::int64_t at = row * kBlock + v * kVecLanes;
        Vec value = load(args.sums + at) * scale * scales[v] + bias;
        if (args.residual != nullptr) value += load(args.residual + at);
        value = activate<Kind>(value, args.activation.a, args.activation.b);
        if (args.non_temporal) {
          store_non_temporal(args.out + at, value);
        } else {
          store(args.out + at, value);
        }
      }
    }
  }
};

inline void dense_finish(DenseFinishArgs args) { with_activation<DenseFinish>(args.activation.kind, args); }

}  // namespace sift::cpu::SIFT_ISA
