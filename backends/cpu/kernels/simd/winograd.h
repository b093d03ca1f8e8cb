// Winograd's transforms and products, 16 tiles at once; see conv/winograd.h. The interpolation points are 0, 3/4, -3/4,
// 3/2, -3/2 and infinity. They cause smaller rounding errors than the usual 1 and 2 in place of 3/4 and 3/2.
#pragma once

#include <algorithm>

#include "simd/kernel_table.h"
#include "simd/reorder.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Rows whose sums of a point are in registers at the same time: as many as hide the latency of multiply-adds.
inline constexpr int kWinogradTogether = kVecsPerBlock == 1 ? 8 : kVecsPerBlock == 2 ? 4 : 2;
static_assert(kWinogradRows % kWinogradTogether == 0);

// Those of a tile that are pixels of the image, as bits, from the `first`-th on.
inline std::uint32_t winograd_inside(const WinogradTilesArgs& args, int lane, std::int64_t first, std::int64_t count) {
  if (lane < args.first_lane || lane >= args.end_lane) return 0;
  const std::int64_t left = args.left + (lane - args.first_lane) * args.step + first;
  const std::int64_t begin = std::clamp<std::int64_t>(-left, 0, count);
  const std::int64_t end = std::clamp<std::int64_t>(args.width - left, begin, count);
  return (1U << end) - (1U << begin);
}

inline void winograd_tiles(const WinogradTilesArgs& args) {
  for (std::int64_t first = 0; first < args.pixels; first += kBlock) {
    const std::int64_t count = std::min<std::int64_t>(args.pixels - first, kBlock);
    const std::int64_t* const places = args.places + first;
    std::uint32_t inside[kBlock];
    for (int lane = 0; lane < kBlock; ++lane) inside[lane] = winograd_inside(args, lane, first, count);
    const std::ptrdiff_t left = args.left + first - args.first_lane * args.step;
    for (std::int64_t row = 0; row < args.count; ++row) {
      const float* const line = args.lines[row];
      float* const to = args.to + args.line_places[row];
      if (line == nullptr) {
        for (std::int64_t i = 0; i < count; ++i) {
          std::fill(to + places[i] + args.first_lane, to + places[i] + args.end_lane, 0.0F);
        }
        continue;
      }
#if defined(__AVX512F__)
      // The pixels of each tile, turned to the tiles of each pixel. Gathers take several times as long.
      __m512 block[kBlock];
#pragma GCC unroll 16
      for (int lane = 0; lane < kBlock; ++lane) {
        block[lane] = _mm512_maskz_loadu_ps(static_cast<__mmask16>(inside[lane]), line + left + lane * args.step);
      }
      transpose_block(block);
      const auto lanes = static_cast<__mmask16>((1U << args.end_lane) - (1U << args.first_lane));
#pragma GCC unroll 16
      for (int i = 0; i < kBlock; ++i) {
        if (i < count) _mm512_mask_storeu_ps(to + places[i], lanes, block[i]);
      }
#else
      for (int lane = args.first_lane; lane < args.end_lane; ++lane) {
        const float* const from = line + left + lane * args.step;
        for (std::int64_t i = 0; i < count; ++i) {
          to[places[i] + lane] = (inside[lane] >> i & 1U) != 0 ? from[i] : 0.0F;
        }
      }
#endif
    }
  }
}

// Transforms six adjacent pixels to their six points.
[[gnu::always_inline]] inline void winograd_points_of(const Vec (&d)[6], Vec (&points)[6]) {
  constexpr float a = kWinogradInner;
  constexpr float b = kWinogradOuter;
  const Vec inner_even = d[4] - b * b * d[2];
  const Vec inner_odd = a * (d[3] - b * b * d[1]);
  const Vec outer_even = d[4] - a * a * d[2];
  const Vec outer_odd = b * (d[3] - a * a * d[1]);
  points[0] = a * a * b * b * d[0] - (a * a + b * b) * d[2] + d[4];
  points[1] = inner_even + inner_odd;
  points[2] = inner_even - inner_odd;
  points[3] = outer_even + outer_odd;
  points[4] = outer_even - outer_odd;
  points[5] = a * a * b * b * d[1] - (a * a + b * b) * d[3] + d[5];
}

// Transforms six points to the outputs of a row.
template <int Outputs>
[[gnu::always_inline]] inline void winograd_outputs_of(const Vec (&points)[6], Vec (&outputs)[Outputs]) {
  constexpr float a = kWinogradInner;
  constexpr float b = kWinogradOuter;
  const Vec inner_even = points[1] + points[2];
  const Vec inner_odd = points[1] - points[2];
  const Vec outer_even = points[3] + points[4];
  const Vec outer_odd = points[3] - points[4];
  outputs[0] = points[0] + inner_even + outer_even;
  outputs[1] = a * inner_odd + b * outer_odd;
  outputs[2] = a * a * inner_even + b * b * outer_even;
  if constexpr (Outputs == 4) outputs[3] = a * a * a * inner_odd + b * b * b * outer_odd;
  outputs[Outputs - 1] += points[5];
}

inline void winograd_input(const float* patch, std::int64_t phases, float* points) {
  for (std::int64_t phase = 0; phase < phases; ++phase, patch += kWinogradPoints * kBlock) {
    for (int v = 0; v < kVecsPerBlock; ++v) {
      Vec rows[6][6];
      for (int x = 0; x < 6; ++x) {
        Vec column[6];
        Vec transformed[6];
        for (int y = 0; y < 6; ++y) column[y] = load(patch + (y * 6 + x) * kBlock + v * kVecLanes);
        winograd_points_of(column, transformed);
        for (int y = 0; y < 6; ++y) rows[y][x] = transformed[y];
      }
      for (int y = 0; y < 6; ++y) {
        Vec transformed[6];
        winograd_points_of(rows[y], transformed);
        for (int x = 0; x < 6; ++x)
          store(points + ((y * 6 + x) * phases + phase) * kBlock + v * kVecLanes, transformed[x]);
      }
    }
  }
}

// sums[row] = the products of one point, over all phases.
[[gnu::always_inline]] inline void winograd_multiply(const float* points, const float* weights, std::int64_t phases,
                                                     float (*sums)[kBlock]) {
#pragma GCC unroll 1
  for (int first = 0; first < kWinogradRows; first += kWinogradTogether) {
    Vec sum[kWinogradTogether][kVecsPerBlock]{};
#pragma GCC unroll 1
    for (std::int64_t phase = 0; phase < phases; ++phase) {
      Vec x[kVecsPerBlock];
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) x[v] = load(points + phase * kBlock + v * kVecLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kWinogradTogether; ++r) {
        const Vec weight = splat(weights[phase * kWinogradRows + first + r]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecsPerBlock; ++v) sum[r][v] += weight * x[v];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kWinogradTogether; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) store(sums[first + r] + v * kVecLanes, sum[r][v]);
    }
  }
}

// Shuffles that interleave the lanes of `Outputs` vectors: [stored vector][source vector][lane]. Indices from kVecLanes
// on take a lane of the source vector; others keep the lane.
template <int Outputs>
struct Turns {
  alignas(64) std::int32_t from[Outputs][Outputs][kVecLanes]{};

  constexpr Turns() {
    for (int stored = 0; stored < Outputs; ++stored) {
      for (int taken = 0; taken < Outputs; ++taken) {
        for (int lane = 0; lane < kVecLanes; ++lane) {
          const int place = stored * kVecLanes + lane;
          from[stored][taken][lane] = place % Outputs == taken ? kVecLanes + place / Outputs : lane;
        }
      }
    }
  }
};
template <int Outputs>
inline constexpr Turns<Outputs> kTurns;

// Makes the `Outputs` outputs of each lane adjacent: those of lane 0, of lane 1, ...
template <int Outputs>
[[gnu::always_inline]] inline void store_in_turns(const Vec (&outputs)[Outputs], float* at) {
#pragma GCC unroll 4
  for (int stored = 0; stored < Outputs; ++stored) {
    Vec turns = outputs[0];
#pragma GCC unroll 4
    for (int taken = 0; taken < Outputs; ++taken) {
      turns = shuffle(turns, outputs[taken], kTurns<Outputs>.from[stored][taken]);
    }
    store(at + stored * kVecLanes, turns);
  }
}

template <int Outputs>
void winograd_rows_of(const WinogradArgs& args) {
  alignas(64) float points[6][kWinogradRows][kBlock];
  alignas(64) float lines[6][Outputs][kWinogradRows][kBlock];
  const float* v_points = args.points;
  const float* weights = args.weights;
  for (int y = 0; y < 6; ++y) {
    for (int x = 0; x < 6; ++x) {
      winograd_multiply(v_points, weights, args.phases, points[x]);
      v_points += args.phases * kBlock;
      weights += args.phases * kWinogradRows;
    }
    for (int row = 0; row < kWinogradRows; ++row) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) {
        Vec sums[6];
        Vec outputs[Outputs];
        for (int x = 0; x < 6; ++x) sums[x] = load(points[x][row] + v * kVecLanes);
        winograd_outputs_of(sums, outputs);
        for (int x = 0; x < Outputs; ++x) store(lines[y][x][row] + v * kVecLanes, outputs[x]);
      }
    }
  }
  for (int row = 0; row < kWinogradRows; ++row) {
    const Vec bias = splat(args.bias[row]);
    float* const out = args.out + row * Outputs * Outputs * kBlock;
#pragma GCC unroll 4
    for (int v = 0; v < kVecsPerBlock; ++v) {
      Vec outputs[Outputs][Outputs];  // [y][x]
#pragma GCC unroll 4
      for (int x = 0; x < Outputs; ++x) {
        Vec sums[6];
        Vec column[Outputs];
        for (int y = 0; y < 6; ++y) sums[y] = load(lines[y][x][row] + v * kVecLanes);
        winograd_outputs_of(sums, column);
        for (int y = 0; y < Outputs; ++y) outputs[y][x] = column[y] + bias;
      }
#pragma GCC unroll 4
      for (int y = 0; y < Outputs; ++y) {
        float* const line = out + y * Outputs * kBlock;
        if (args.in_turns) {
          store_in_turns(outputs[y], line + v * Outputs * kVecLanes);
        } else {
          for (int x = 0; x < Outputs; ++x) store(line + x * kBlock + v * kVecLanes, outputs[y][x]);
        }
      }
    }
  }
}

inline void winograd_rows(const WinogradArgs& args) {
  if (args.outputs == 3) return winograd_rows_of<3>(args);
  return winograd_rows_of<4>(args);
}

}  // namespace sift::cpu::SIFT_ISA
