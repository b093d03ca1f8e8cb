// Attention to keys and values that lie row by row, as in a decoder's cache: of blocks of queries in the lanes, or of a
// single query, with the channels in the lanes.
#pragma once

#include <limits>

#include "simd/activation.h"
#include "simd/attention.h"
#include "simd/kernel_table.h"
#include "simd/rows/tile.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// scores[key][block] of keys in rows.
template <int Together, int Cols>
[[gnu::always_inline]] inline void score_rows(const AttentionArgs& args, std::int64_t key) {
  using Sums = Tile<1, Cols>;
  Sums sums[Together];
  for (Sums& sum : sums) sum.fill(0);
  const float* const from = args.keys + key * args.key_stride;
  const float* x = args.panel;
#pragma GCC unroll 1
  for (std::int64_t c = 0; c < args.depth; ++c, x += Cols * kBlock) {
    for_each_vec<1, Cols>(reinterpret_cast<const std::byte*>(x), 0, [&](int v, Vec operand) {
#pragma GCC unroll 4
      for (int r = 0; r < Together; ++r) sums[r].vec[v] += splat(from[r * args.key_stride + c]) * operand;
    });
  }
#pragma GCC unroll 4
  for (int r = 0; r < Together; ++r) sums[r].store_to(args.scores + (key + r) * Cols * kBlock);
}

// sums[channel .. channel + Together] += values * weights, of keys [first, end) in rows.
template <int Together, int Cols>
[[gnu::always_inline]] inline void weigh_rows(const AttentionArgs& args, std::int64_t channel, std::int64_t first,
                                              std::int64_t end) {
  using Sums = Tile<1, Cols>;
  Sums sums[Together];
  float* const at = args.sums + channel * Cols * kBlock;
#pragma GCC unroll 4
  for (int r = 0; r < Together; ++r) {
    if (first == 0) {
      sums[r].fill(0);
    } else {
      sums[r].load_from(at + r * Cols * kBlock);
    }
  }
  const float* from = args.values + first * args.value_stride + channel;
  const float* x = args.scores + first * Cols * kBlock;
#pragma GCC unroll 1
  for (std::int64_t key = first; key < end; ++key, from += args.value_stride, x += Cols * kBlock) {
    for_each_vec<1, Cols>(reinterpret_cast<const std::byte*>(x), 0, [&](int v, Vec operand) {
#pragma GCC unroll 4
      for (int r = 0; r < Together; ++r) sums[r].vec[v] += splat(from[r]) * operand;
    });
  }
#pragma GCC unroll 4
  for (int r = 0; r < Together; ++r) sums[r].store_to(at + r * Cols * kBlock);
}

// Of whole vectors of scores.
inline void cap_scores(float* scores, std::int64_t count, float cap) {
  const float unit = 1.0F / cap;
  for (std::int64_t i = 0; i < count; i += kVecLanes) store(scores + i, tanh(load(scores + i) * unit) * cap);
}

template <int Cols>
void attend_block_of_rows(const AttentionArgs& args) {
  std::int64_t key = 0;
  for (; key + kTogether <= args.end_key; key += kTogether) score_rows<kTogether, Cols>(args, key);
  for (; key < args.end_key; ++key) score_rows<1, Cols>(args, key);
  if (args.softcap != 0) cap_scores(args.scores, args.end_key * Cols * kBlock, args.softcap);
  if (args.mask != nullptr) add_mask<Cols>(args);
  const Tile<1, Cols> factors = softmax<Cols>(args);
  for (std::int64_t first = 0; first < args.end_key; first += kKeysAtOnce) {
    const std::int64_t end = first + kKeysAtOnce < args.end_key ? first + kKeysAtOnce : args.end_key;
    std::int64_t channel = 0;
    for (; channel + kTogether <= args.value_depth; channel += kTogether) {
      weigh_rows<kTogether, Cols>(args, channel, first, end);
    }
    for (; channel < args.value_depth; ++channel) weigh_rows<1, Cols>(args, channel, first, end);
  }
  float* at = args.sums;
  for (std::int64_t c = 0; c < args.value_depth; ++c) {
    for (int v = 0; v < Tile<1, Cols>::kVecs; ++v, at += kVecLanes) {
      const Vec factor = factors.vec[v];
      const Vec result = load(at) * factor;
      store(at, !args.nan_to_zero || factor[0] == factor[0] ? result : (factor == factor ? result : splat(0)));
    }
  }
}

// `panel` has the scaled queries; `sums` gets the result. No other operand of queries or results is looked at.
template <int Cols = 1>
void attend_rows(const AttentionArgs& args) {
  if (args.blocks == Cols) return attend_block_of_rows<Cols>(args);
  if constexpr (Cols < kMostQueryBlocks) attend_rows<Cols + 1>(args);
}

// By halves: a sum per key is worth it, unlike one per row of a normalization.
[[gnu::always_inline]] inline float halved_sum(Vec x) {
#pragma GCC unroll 4
  for (int half = kVecLanes / 2; half > 0; half /= 2) {
    alignas(kVecBytes) std::int32_t from[kVecLanes];
#pragma GCC unroll 16
    for (int lane = 0; lane < kVecLanes; ++lane) from[lane] = (lane + half) % kVecLanes;
    x += shuffle(x, x, from);
  }
  return x[0];
}

// Asks for the lines of `rows` rows that lie one behind the other.
[[gnu::always_inline]] inline void prefetch_rows(const float* from, std::int64_t rows, std::ptrdiff_t stride) {
  constexpr std::ptrdiff_t kLineFloats = 16;
  for (std::ptrdiff_t i = 0; i < rows * stride; i += kLineFloats) __builtin_prefetch(from + i, 0, 2);
}

template <int Together>
[[gnu::always_inline]] inline void score_one(const AttentionArgs& args, std::int64_t key) {
  if (args.asks_for_values) prefetch_rows(args.values + key * args.value_stride, Together, args.value_stride);
  Vec sums[Together]{};
  const float* const from = args.keys + key * args.key_stride;
  const std::int64_t whole = args.depth / kVecLanes * kVecLanes;
#pragma GCC unroll 1
  for (std::int64_t c = 0; c < whole; c += kVecLanes) {
    const Vec query = load(args.panel + c);
#pragma GCC unroll 4
    for (int r = 0; r < Together; ++r) sums[r] += query * load_unaligned(from + r * args.key_stride + c);
  }
  if (whole < args.depth) {
    const int lanes = static_cast<int>(args.depth - whole);
    const Vec query = load_lanes(args.panel + whole, lanes);
    for (int r = 0; r < Together; ++r) sums[r] += query * load_lanes(from + r * args.key_stride + whole, lanes);
  }
#pragma GCC unroll 4
  for (int r = 0; r < Together; ++r) args.scores[key + r] = halved_sum(sums[r]);
}

// Vectors of channels that a single query's sums take.
inline constexpr int kChannelVecs = 8;

template <int Vecs>
[[gnu::always_inline]] inline void weigh_one(const AttentionArgs& args, std::int64_t channel, float factor) {
  Vec sums[Vecs]{};
  const float* from = args.values + channel;
#pragma GCC unroll 1
  for (std::int64_t key = 0; key < args.end_key; ++key, from += args.value_stride) {
    if (channel == 0 && args.next_keys != nullptr) {
      prefetch_rows(args.next_keys + key * args.key_stride, 1, args.key_stride);
    }
    const Vec weight = splat(args.scores[key]);
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; ++v) sums[v] += weight * load_unaligned(from + v * kVecLanes);
  }
  for (int v = 0; v < Vecs; ++v) store_unaligned(args.out + channel + v * kVecLanes, sums[v] * factor);
}

// A single query: `panel` has it, scaled; `mask` is [keys]; `scores` has room for whole vectors of keys; `out` gets the
// result, of value_depth channels.
inline void attend_row(const AttentionArgs& args) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  std::int64_t key = 0;
  for (; key + kTogether <= args.end_key; key += kTogether) score_one<kTogether>(args, key);
  for (; key < args.end_key; ++key) score_one<1>(args, key);
  const std::int64_t end = (args.end_key + kVecLanes - 1) / kVecLanes * kVecLanes;
  for (key = args.end_key; key < end; ++key) args.scores[key] = kNothing;
  if (args.softcap != 0) cap_scores(args.scores, end, args.softcap);
  if (args.mask != nullptr) {
    for (key = 0; key < args.end_key; ++key) args.scores[key] += args.mask[key];
  }
  // A score that was capped is none any more.
  for (key = args.end_key; key < end; ++key) args.scores[key] = kNothing;
  Vec most = splat(kNothing);
  for (key = 0; key < end; key += kVecLanes) most = max(most, load(args.scores + key));
  float greatest = most[0];
  for (int lane = 1; lane < kVecLanes; ++lane) greatest = greatest < most[lane] ? most[lane] : greatest;
  Vec sum = splat(0);
  for (key = 0; key < end; key += kVecLanes) {
    const Vec difference = load(args.scores + key) - greatest;
    const Vec weight = difference < -87.0F ? splat(0) : exp(difference);
    store(args.scores + key, weight);
    sum += weight;
  }
  const float factor = 1.0F / halved_sum(sum);
  if (args.nan_to_zero && factor != factor) {
    for (std::int64_t c = 0; c < args.value_depth; ++c) args.out[c] = 0;
    return;
  }
  std::int64_t channel = 0;
  for (; channel + kChannelVecs * kVecLanes <= args.value_depth; channel += kChannelVecs * kVecLanes) {
    weigh_one<kChannelVecs>(args, channel, factor);
  }
  for (; channel + 4 * kVecLanes <= args.value_depth; channel += 4 * kVecLanes) weigh_one<4>(args, channel, factor);
  for (; channel + kVecLanes <= args.value_depth; channel += kVecLanes) weigh_one<1>(args, channel, factor);
  for (; channel < args.value_depth; ++channel) {
    float total = 0;
    for (key = 0; key < args.end_key; ++key) total += args.scores[key] * args.values[key * args.value_stride + channel];
    args.out[channel] = total * factor;
  }
}

}  // namespace sift::cpu::SIFT_ISA
