// Attention of one head for a few blocks of queries, which lie in the lanes: scores, their softmax, and the values that
// they weigh. Keys and values are read where they lie, one float at a time, as dense rows of weights are.
#pragma once

#include <limits>

#include "simd/activation.h"
#include "simd/kernel_table.h"
#include "simd/rows/tile.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Keys, or channels of values, that share an operand.
inline constexpr int kTogether = 4;

// Blocks of queries whose sums the registers hold, for four keys at a time.
inline constexpr int kMostQueryBlocks = [] {
  const int blocks = (kRegisters - 3) / (kTogether * kVecsPerBlock);
  return blocks < 1 ? 1 : blocks > 6 ? 6 : blocks;
}();

// Keys whose weights stay in the first-level cache while all channels of the values pass.
inline constexpr std::int64_t kKeysAtOnce = 128;

// sums[r] += weights[r RowStep + i ColumnStep] * x[i], for `count` blocks x of Cols blocks each.
template <int Together, int Cols, int RowStep, int ColumnStep>
[[gnu::always_inline]] inline void multiply(const float* weights, const float* x, std::int64_t count,
                                            Tile<1, Cols>* sums) {
#pragma GCC unroll 1
  for (std::int64_t i = 0; i < count; ++i, weights += ColumnStep, x += Cols * kBlock) {
    for_each_vec<1, Cols>(reinterpret_cast<const std::byte*>(x), 0, [&](int v, Vec operand) {
#pragma GCC unroll 4
      for (int r = 0; r < Together; ++r) sums[r].vec[v] += splat(weights[r * RowStep]) * operand;
    });
  }
}

// panel[channel][block] = queries * scale
template <int Cols>
void scale_queries(const AttentionArgs& args) {
  float* to = args.panel;
  for (std::int64_t c = 0; c < args.depth; ++c) {
    for (int col = 0; col < Cols; ++col, to += kBlock) {
      const float* const from = args.queries + col * args.query_stride + c * kBlock;
      for (int v = 0; v < kVecsPerBlock; ++v) store(to + v * kVecLanes, load(from + v * kVecLanes) * args.scale);
    }
  }
}

// scores[key][block], of keys that lie before first_key or from end_key on as well where they share a group of four.
template <int Cols>
void score_keys(const AttentionArgs& args) {
  using Sums = Tile<1, Cols>;
  for (std::int64_t key = args.first_key / kTogether * kTogether; key < args.end_key; key += kTogether) {
    Sums sums[kTogether];
    for (Sums& sum : sums) sum.fill(0);
    const float* const from = args.keys + key / kBlock * args.key_stride + key % kBlock;
    multiply<kTogether, Cols, 1, kBlock>(from, args.panel, args.depth, sums);
#pragma GCC unroll 4
    for (int r = 0; r < kTogether; ++r) sums[r].store_to(args.scores + (key + r) * Cols * kBlock);
  }
}

template <int Cols>
void add_mask(const AttentionArgs& args) {
  const std::int64_t keys = args.end_key - args.first_key;
  for (std::int64_t key = 0; key < keys; ++key) {
    float* const at = args.scores + (args.first_key + key) * Cols * kBlock;
    for (int col = 0; col < Cols; ++col) {
      const float* const of_queries = args.mask + (col * keys + key) * kBlock;
      for (int v = 0; v < kVecsPerBlock; ++v) {
        float* const score = at + col * kBlock + v * kVecLanes;
        store(score, load(score) + (args.mask_by_query ? load(of_queries + v * kVecLanes) : splat(args.mask[key])));
      }
    }
  }
}

// Rounds what is in `scores`, times `factors`.
template <int Cols>
void round_scores(const AttentionArgs& args, std::span<const Rounding> roundings, const Tile<1, Cols>* factors) {
  // Adding this to a float of up to 22 bits, and taking it off again, leaves an integer: half to even.
  constexpr float kRounding = 0x1.8p23F;
  constexpr int kVecs = Tile<1, Cols>::kVecs;
  float* const begin = args.scores + args.first_key * Cols * kBlock;
  float* const end = args.scores + args.end_key * Cols * kBlock;
  for (float* at = begin; at < end; at += Cols * kBlock) {
#pragma GCC unroll 1
    for (int v = 0; v < kVecs; ++v) {
      Vec value = load(at + v * kVecLanes);
      if (factors != nullptr) value *= factors->vec[v];
      for (const Rounding& rounding : roundings) {
        value = min(max(value * rounding.steps, splat(rounding.low)), splat(rounding.high));
        value = (value + kRounding - kRounding) * rounding.scale;
      }
      store(at + v * kVecLanes, value);
    }
  }
}

// Turns scores into exp(score - greatest); the inverse of their sum is what is left to multiply with.
template <int Cols>
[[gnu::always_inline]] inline Tile<1, Cols> softmax(const AttentionArgs& args) {
  using Sums = Tile<1, Cols>;
  constexpr int kStep = Cols * kBlock;
  float* const begin = args.scores + args.first_key * kStep;
  float* const end = args.scores + args.end_key * kStep;
  Sums greatest;
  greatest.load_from(begin);
  for (const float* at = begin + kStep; at < end; at += kStep) {
#pragma GCC unroll 32
    for (int v = 0; v < Sums::kVecs; ++v) greatest.vec[v] = max(greatest.vec[v], load(at + v * kVecLanes));
  }
  Sums sum;
  sum.fill(0);
  for (float* at = begin; at < end; at += kStep) {
#pragma GCC unroll 1
    for (int v = 0; v < Sums::kVecs; ++v) {
      const Vec difference = load(at + v * kVecLanes) - greatest.vec[v];
      // What is masked has a weight of zero, not of the least float: products with that would be subnormal, and slow.
      const Vec weight = difference < -87.0F ? splat(0) : exp(difference);
      store(at + v * kVecLanes, weight);
      sum.vec[v] += weight;
    }
  }
  for (int v = 0; v < Sums::kVecs; ++v) sum.vec[v] = 1.0F / sum.vec[v];
  return sum;
}

// sums[channel .. channel + Together] += values * weights, of keys [first, end).
template <int Together, int Cols>
void weigh_values(const AttentionArgs& args, std::int64_t channel, std::int64_t first, std::int64_t end) {
  using Sums = Tile<1, Cols>;
  constexpr std::int64_t kStep = Cols * kBlock;
  Sums sums[Together];
  float* const at = args.sums + channel * kStep;
#pragma GCC unroll 4
  for (int r = 0; r < Together; ++r) {
    if (first == args.first_key) {
      sums[r].fill(0);
    } else {
      sums[r].load_from(at + r * kStep);
    }
  }
  for (std::int64_t key = first; key < end;) {
    const std::int64_t block_end = (key / kBlock + 1) * kBlock;
    const std::int64_t stop = block_end < end ? block_end : end;
    const float* const from = args.values + key / kBlock * args.value_stride + channel * kBlock + key % kBlock;
    multiply<Together, Cols, kBlock, 1>(from, args.scores + key * kStep, stop - key, sums);
    key = stop;
  }
#pragma GCC unroll 4
  for (int r = 0; r < Together; ++r) sums[r].store_to(at + r * kStep);
}

template <int Cols>
void store_outputs(const AttentionArgs& args, const Tile<1, Cols>& factors) {
  const float* from = args.sums;
  for (std::int64_t c = 0; c < args.value_depth; ++c) {
    for (int col = 0; col < Cols; ++col) {
      float* const to = args.out + col * args.out_stride + c * kBlock;
      const std::int64_t first = args.first_query - col * kBlock;
      const std::int64_t end = args.end_query - col * kBlock;
      for (int v = 0; v < kVecsPerBlock; ++v, from += kVecLanes) {
        const Vec factor = factors.vec[col * kVecsPerBlock + v];
        Vec result = load(from) * factor;
        if (args.nan_to_zero) result = factor == factor ? result : splat(0);
        if (first <= v * kVecLanes && (v + 1) * kVecLanes <= end) {
          store(to + v * kVecLanes, result);
          continue;
        }
        // The other lanes are of other images, and may be written by another thread at the same time.
        for (int lane = 0; lane < kVecLanes; ++lane) {
          const std::int64_t query = v * kVecLanes + lane;
          if (first <= query && query < end) to[query] = result[lane];
        }
      }
    }
  }
}

template <int Cols>
void attend_blocks(const AttentionArgs& args) {
  scale_queries<Cols>(args);
  score_keys<Cols>(args);
  const AttentionRoundings& roundings = args.roundings;
  if (!roundings.scores.empty()) round_scores<Cols>(args, roundings.scores, nullptr);
  if (args.mask != nullptr) add_mask<Cols>(args);
  if (!roundings.masked.empty()) round_scores<Cols>(args, roundings.masked, nullptr);
  Tile<1, Cols> factors = softmax<Cols>(args);
  if (!roundings.weights.empty()) {
    round_scores<Cols>(args, roundings.weights, &factors);
    // NaN stays, for the outputs: zeros that are rounded are zeros.
    for (Vec& factor : factors.vec) factor = factor == factor ? splat(1) : factor;
  }
  for (std::int64_t first = args.first_key; first < args.end_key; first += kKeysAtOnce) {
    const std::int64_t end = first + kKeysAtOnce < args.end_key ? first + kKeysAtOnce : args.end_key;
    std::int64_t channel = 0;
    for (; channel + kTogether <= args.value_depth; channel += kTogether) {
      weigh_values<kTogether, Cols>(args, channel, first, end);
    }
    for (; channel < args.value_depth; ++channel) weigh_values<1, Cols>(args, channel, first, end);
  }
  store_outputs<Cols>(args, factors);
}

template <int Cols = 1>
void attend(const AttentionArgs& args) {
  if (args.blocks == Cols) return attend_blocks<Cols>(args);
  if constexpr (Cols < kMostQueryBlocks) attend<Cols + 1>(args);
}

}  // namespace sift::cpu::SIFT_ISA
