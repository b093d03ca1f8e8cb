// Layer normalization of tokens in NCHWn16, and its gradient: each lane by itself.
#pragma once

#include "simd/train/batch_norm.h"

namespace sift::cpu::SIFT_ISA {

// As sum_of, of sums of chunks: there may be thousands of channels.
template <typename Sum, typename Use>
[[gnu::always_inline]] inline Sum sum_of_chunks(std::int64_t count, Use use) {
  Sum total{};
  for (std::int64_t first = 0; first < count; first += kChunk) {
    const std::int64_t size = count - first < kChunk ? count - first : kChunk;
    total += sum_of<Sum>(size, [&](std::int64_t i) { return use(first + i); });
  }
  return total;
}

// Statistics of the vectors of a block. The last pass stores whole blocks: half a line in a non-temporal store costs a
// transfer of its own.
struct BlockStatistics {
  Vec mean[kVecsPerBlock];
  Vec factor[kVecsPerBlock];
};

inline BlockStatistics token_statistics(const LayerNormArgs& args) {
  const LaneMasks masks(args.lanes);
  const float count = static_cast<float>(args.channels);
  BlockStatistics found;
  for (int v = 0; v < kVecsPerBlock; ++v) {
    const float* const x = args.x + v * kVecLanes;
    Vec rough{};
    if (args.mean != nullptr) {
      rough = sum_of_chunks<Vec>(args.channels, [&](std::int64_t c) { return load(x + c * kBlock); }) / count;
    }
    const TwoSums about = sum_of_chunks<TwoSums>(args.channels, [&](std::int64_t c) {
      const Vec difference = load(x + c * kBlock) - rough;
      return TwoSums{difference, difference * difference};
    });
    // How far the mean is from one that is rounded.
    const Vec off = args.mean == nullptr ? Vec{} : about.first / count;
    const Vec variance = max(about.second / count - off * off, Vec{});
    found.mean[v] = keep(rough + off, masks.of[v]);
    found.factor[v] = keep(inverse_root(variance + args.epsilon), masks.of[v]);
  }
  return found;
}

inline void layer_norm(LayerNormArgs args) {
  const BlockStatistics statistics = token_statistics(args);
  for (int v = 0; v < kVecsPerBlock; ++v) {
    if (args.mean != nullptr) store(args.mean + v * kVecLanes, statistics.mean[v]);
    store(args.inverse_std + v * kVecLanes, statistics.factor[v]);
  }
  with_flag(args.weight != nullptr, [&](auto has_weight) {
    with_flag(args.bias != nullptr, [&](auto has_bias) {
      with_flag(args.non_temporal, [&](auto non_temporal) {
        for (std::int64_t c = 0; c < args.channels; ++c) {
#pragma GCC unroll 4
          for (int v = 0; v < kVecsPerBlock; ++v) {
            const std::int64_t at = c * kBlock + v * kVecLanes;
            Vec value = (load(args.x + at) - statistics.mean[v]) * statistics.factor[v];
            if constexpr (decltype(has_weight)::value) value *= args.weight[c];
            if constexpr (decltype(has_bias)::value) value += args.bias[c];
            store_as<decltype(non_temporal)::value>(args.out + at, value);
          }
        }
      });
    });
  });
}

template <bool HasWeight>
[[gnu::always_inline]] inline void layer_norm_gradient_of(const LayerNormGradientArgs& args) {
  const LaneMasks masks(args.lanes);
  const float count = static_cast<float>(args.channels);
  const auto weighted = [&](Vec gradient, std::int64_t c) {
    if constexpr (HasWeight) return gradient * args.weight[c];
    return gradient;
  };
  BlockStatistics statistics;
  const auto gradient_at = [&](std::int64_t c, int v) {
    return keep(load(args.dy + c * kBlock + v * kVecLanes), masks.of[v]);
  };
  const auto normalized_at = [&](std::int64_t c, int v) {
    return keep((load(args.x + c * kBlock + v * kVecLanes) - statistics.mean[v]) * statistics.factor[v], masks.of[v]);
  };
  TwoSums means[kVecsPerBlock];
  for (int v = 0; v < kVecsPerBlock; ++v) {
    statistics.mean[v] = args.mean == nullptr ? Vec{} : load(args.mean + v * kVecLanes);
    statistics.factor[v] = load(args.inverse_std + v * kVecLanes);
    const TwoSums sums = sum_of_chunks<TwoSums>(args.channels, [&](std::int64_t c) {
      const Vec gradient = weighted(gradient_at(c, v), c);
      return TwoSums{gradient, gradient * normalized_at(c, v)};
    });
    means[v] = {args.mean == nullptr ? Vec{} : sums.first / count, sums.second / count};
  }
  with_flag(args.sums != nullptr, [&](auto has_sums) {
    with_flag(args.non_temporal, [&](auto non_temporal) {
      for (std::int64_t c = 0; c < args.channels; ++c) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecsPerBlock; ++v) {
          const Vec gradient = gradient_at(c, v);
          const Vec normalized = normalized_at(c, v);
          if constexpr (decltype(has_sums)::value) {
            float* const sums = args.sums + 2 * c * kBlock + v * kVecLanes;
            store(sums, load(sums) + gradient * normalized);
            store(sums + kBlock, load(sums + kBlock) + gradient);
          }
          const Vec dx = statistics.factor[v] * (weighted(gradient, c) - means[v].first - normalized * means[v].second);
          store_as<decltype(non_temporal)::value>(args.dx + c * kBlock + v * kVecLanes, keep(dx, masks.of[v]));
        }
      }
    });
  });
}

inline void layer_norm_gradient(LayerNormGradientArgs args) {
  with_flag(args.weight != nullptr,
            [&](auto has_weight) { layer_norm_gradient_of<decltype(has_weight)::value>(args); });
}

}  // namespace sift::cpu::SIFT_ISA
