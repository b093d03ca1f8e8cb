// Batch normalization of tensors in NCHWn16, and its gradient.
#pragma once

#include "simd/normalize.h"
#include "simd/train/lane_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Sums of this many blocks are in single precision, those of chunks in double. A chunk stays in the first-level cache.
inline constexpr std::int64_t kChunk = 64;

// All bits of the first lanes of a block; its vector number `v`.
inline IntVec lanes_mask(int lanes, int v) {
  IntVec mask{};
  for (int lane = 0; lane < kVecLanes; ++lane) mask[lane] = v * kVecLanes + lane < lanes ? -1 : 0;
  return mask;
}
inline Vec keep(Vec value, IntVec mask) { return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(value) & mask); }

struct LaneMasks {
  IntVec of[kVecsPerBlock];

  explicit LaneMasks(int lanes) {
    for (int v = 0; v < kVecsPerBlock; ++v) of[v] = lanes_mask(lanes, v);
  }
};

inline double sum_in_double(Vec x) {
  double sum = 0;
  for (int lane = 0; lane < kVecLanes; ++lane) sum += static_cast<double>(x[lane]);
  return sum;
}

struct TwoSums {
  Vec first{};
  Vec second{};

  TwoSums& operator+=(const TwoSums& other) {
    first += other.first;
    second += other.second;
    return *this;
  }
  TwoSums operator+(const TwoSums& other) const { return {first + other.first, second + other.second}; }
};

// Adds use(place, number of the vector in its block) for each vector of `blocks` blocks; place is in floats.
template <typename Use>
[[gnu::always_inline]] inline TwoSums two_sums_of(std::int64_t blocks, Use use) {
  constexpr int kChains = 4;
  TwoSums sums[kChains];
  std::int64_t i = 0;
  for (; i + kChains <= blocks; i += kChains) {
#pragma GCC unroll 4
    for (int s = 0; s < kChains; ++s) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) use((i + s) * kBlock + v * kVecLanes, v, sums[s]);
    }
  }
  for (; i < blocks; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecsPerBlock; ++v) use(i * kBlock + v * kVecLanes, v, sums[0]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
inline void merge_moments(Moments& total, double count, double mean, double squares) {
  const double all = total.count + count;
  const double difference = mean - total.mean;
  total.mean += difference * (count / all);
  total.squares += squares + difference * difference * (total.count * count / all);
  total.count = all;
}

// Differences from a mean that is rounded are summed too: they say how far the mean is from that of the values.
inline void add_moments(const float* x, std::int64_t blocks, int lanes, Moments& total) {
  const LaneMasks masks(lanes);
  for (std::int64_t first = 0; first < blocks; first += kChunk) {
    const std::int64_t size = blocks - first < kChunk ? blocks - first : kChunk;
    const float* const chunk = x + first * kBlock;
    const double count = static_cast<double>(size * lanes);
    const TwoSums sum = two_sums_of(
        size, [&](std::int64_t at, int v, TwoSums& sums) { sums.first += keep(load(chunk + at), masks.of[v]); });
    const float mean = static_cast<float>(sum_in_double(sum.first) / count);
    const TwoSums about = two_sums_of(size, [&](std::int64_t at, int v, TwoSums& sums) {
      const Vec difference = keep(load(chunk + at) - mean, masks.of[v]);
      sums.first += difference;
      sums.second += difference * difference;
    });
    const double off = sum_in_double(about.first) / count;
    merge_moments(total, count, static_cast<double>(mean) + off, sum_in_double(about.second) - off * off * count);
  }
}

inline void batch_norm(BatchNormArgs args) {
  const std::int64_t size = args.blocks * kBlock;
  with_flag(args.relu, [&](auto relu) {
    with_flag(args.residual != nullptr, [&](auto has_residual) {
      with_flag(args.non_temporal, [&](auto non_temporal) {
#pragma GCC unroll 4
        for (std::int64_t i = 0; i < size; i += kVecLanes) {
          Vec value = (load(args.x + i) - args.mean) * args.scale + args.shift;
          if constexpr (decltype(has_residual)::value) value += load(args.residual + i);
          if constexpr (decltype(relu)::value) value = max(value, Vec{});
          store_as<decltype(non_temporal)::value>(args.out + i, value);
        }
      });
    });
  });
}

// NaN lets the gradient pass, as in torch.
template <ReluMask Relu>
[[gnu::always_inline]] inline Vec masked_gradient(const BatchNormGradientArgs& args, std::int64_t at, Vec centered,
                                                  IntVec lanes) {
  const Vec dy = keep(load(args.dy + at), lanes);
  if constexpr (Relu == ReluMask::none) {
    return dy;
  } else {
    const Vec out = Relu == ReluMask::from_out ? load(args.out + at) : centered * args.scale + args.shift;
    return out <= Vec{} ? Vec{} : dy;
  }
}

template <ReluMask Relu>
[[gnu::always_inline]] inline void batch_norm_sums_of(const BatchNormGradientArgs& args, GradientSums& total) {
  const LaneMasks masks(args.lanes);
  for (std::int64_t first = 0; first < args.blocks; first += kChunk) {
    const std::int64_t size = args.blocks - first < kChunk ? args.blocks - first : kChunk;
    const TwoSums sum = two_sums_of(size, [&](std::int64_t in_chunk, int v, TwoSums& sums) {
      const std::int64_t at = first * kBlock + in_chunk;
      const Vec centered = load(args.x + at) - args.mean;
      const Vec dz = masked_gradient<Relu>(args, at, centered, masks.of[v]);
      sums.first += dz;
      sums.second += dz * centered;
    });
    total.dz += sum_in_double(sum.first);
    total.dz_x += sum_in_double(sum.second);
  }
}

inline void batch_norm_sums(const BatchNormGradientArgs& args, GradientSums& total) {
  switch (args.relu) {
    case ReluMask::none: return batch_norm_sums_of<ReluMask::none>(args, total);
    case ReluMask::from_out: return batch_norm_sums_of<ReluMask::from_out>(args, total);
    case ReluMask::from_x: return batch_norm_sums_of<ReluMask::from_x>(args, total);
  }
}

template <ReluMask Relu>
[[gnu::always_inline]] inline void batch_norm_gradient_of(const BatchNormGradientArgs& args) {
  const LaneMasks masks(args.lanes);
  const std::int64_t size = args.blocks * kBlock;
  with_flag(args.dresidual != nullptr, [&](auto has_residual) {
    with_flag(args.non_temporal, [&](auto non_temporal) {
      for (std::int64_t block = 0; block < size; block += kBlock) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecsPerBlock; ++v) {
          const std::int64_t at = block + v * kVecLanes;
          const Vec centered = load(args.x + at) - args.mean;
          const Vec dz = masked_gradient<Relu>(args, at, centered, masks.of[v]);
          const Vec dx = args.scale * (dz - args.dz_mean - centered * args.slope);
          if constexpr (decltype(has_residual)::value) {
            store_as<decltype(non_temporal)::value>(args.dresidual + at, dz);
          }
          store_as<decltype(non_temporal)::value>(args.dx + at, keep(dx, masks.of[v]));
        }
      }
    });
  });
}

inline void batch_norm_gradient(BatchNormGradientArgs args) {
  switch (args.relu) {
    case ReluMask::none: return batch_norm_gradient_of<ReluMask::none>(args);
    case ReluMask::from_out: return batch_norm_gradient_of<ReluMask::from_out>(args);
    case ReluMask::from_x: return batch_norm_gradient_of<ReluMask::from_x>(args);
  }
}

}  // namespace sift::cpu::SIFT_ISA
