// Winograd's transforms and products, 16 tiles at once; see conv/winograd.h. The interpolation points are 0, 3/4, -3/4,
// 3/2, -3/2 and infinity. They cause smaller rounding errors than the usual 1 and 2 in place of 3/4 and 3/2.
#pragma once

#include <algorithm>

#include "simd/kernel_table.h"
#include "simd/reorder.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Rows whose sums are in registers at the same time, and of how many points of a row of points: as many as hide the
// latency of multiply-adds. With 32 registers the sums of all six are transformed without being stored.
inline constexpr int kWinogradTogether = kVecsPerBlock == 4 ? 2 : 4;
inline constexpr int kWinogradColumns = kVecsPerBlock == 1 ? 6 : 1;
static_assert(kWinogradRows % kWinogradTogether == 0);

// Those of a tile's pixels from the `first`-th on that are the image's, as bits.
inline std::uint16_t winograd_inside(const WinogradTile& tile, std::int64_t first, std::int64_t count) {
  const std::int64_t begin = std::clamp<std::int64_t>(tile.begin - first, 0, count);
  const std::int64_t end = std::clamp<std::int64_t>(tile.end - first, begin, count);
  return static_cast<std::uint16_t>((1U << end) - (1U << begin));
}

inline void winograd_tiles(const WinogradTilesArgs& args) {
  constexpr std::uint16_t kAllTiles = 0xFFFF;
  for (std::int64_t first = 0; first < args.pixels; first += kBlock) {
    const std::int64_t count = std::min<std::int64_t>(args.pixels - first, kBlock);
    const std::int64_t* const places = args.places + first;
    std::uint16_t inside[kBlock];
    std::ptrdiff_t from[kBlock];
    for (int lane = 0; lane < kBlock; ++lane) {
      inside[lane] = winograd_inside(args.tiles[lane], first, count);
      from[lane] = args.tiles[lane].at + first;
    }
    for (std::int64_t row = 0; row < args.count; ++row) {
      const float* const in = args.in + args.rows[row];
      const std::uint16_t tiles = args.inside[row];
      float* const to = args.to + args.row_places[row];
#if defined(__AVX512F__)
      // The pixels of each tile, turned to the tiles of each pixel. Gathers take several times as long.
      __m512 block[kBlock];
      if (tiles == kAllTiles) {
#pragma GCC unroll 16
        for (int lane = 0; lane < kBlock; ++lane) {
          block[lane] = _mm512_maskz_loadu_ps(inside[lane], in + from[lane]);
        }
      } else {
        for (int lane = 0; lane < kBlock; ++lane) {
          const int own = (tiles >> lane & 1U) != 0 ? inside[lane] : 0;
          block[lane] = _mm512_maskz_loadu_ps(static_cast<__mmask16>(own), in + from[lane]);
        }
      }
      transpose_block(block);
#pragma GCC unroll 16
      for (int i = 0; i < kBlock; ++i) {
        if (i < count) _mm512_store_ps(to + places[i], block[i]);
      }
#else
      for (int lane = 0; lane < kBlock; ++lane) {
        const int own = (tiles >> lane & 1U) != 0 ? inside[lane] : 0;
        for (std::int64_t i = 0; i < count; ++i) {
          to[places[i] + lane] = (own >> i & 1) != 0 ? in[from[lane] + i] : 0.0F;
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
          store(points + ((y * phases + phase) * 6 + x) * kBlock + v * kVecLanes, transformed[x]);
      }
    }
  }
}

// Of some columns of points, of each row of weights.
template <int Columns>
using WinogradSums = Vec[Columns][kWinogradTogether][kVecsPerBlock];

// Adds the products of the first columns, of phases [begin, end).
template <int Columns, int All>
[[gnu::always_inline]] inline void winograd_add(const float* points, const float* weights, std::int64_t begin,
                                                std::int64_t end, WinogradSums<All>& sums) {
#pragma GCC unroll 1
  for (std::int64_t phase = begin; phase < end; ++phase) {
#pragma GCC unroll 6
    for (int column = 0; column < Columns; ++column) {
      const std::int64_t at = phase * 6 + column;
      Vec x[kVecsPerBlock];
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) x[v] = load(points + at * kBlock + v * kVecLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kWinogradTogether; ++r) {
        const Vec weight = splat(weights[at * kWinogradRows + r]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecsPerBlock; ++v) sums[column][r][v] += weight * x[v];
      }
    }
  }
}

// The sums of products of row `y` of points, from column `x` on, with the rows of weights from `first` on.
template <int Columns>
[[gnu::always_inline]] inline void winograd_multiply(const WinogradArgs& args, int first, int y, int x,
                                                     WinogradSums<Columns>& sums) {
  const WinogradPhases& phases = args.phases;
  const std::int64_t from = y * phases.count() * 6 + x;
  const float* const points = args.points + from * kBlock;
  const float* const weights = args.weights + from * kWinogradRows + first;
  const std::int64_t rows = y == 5 ? phases.full_rows : phases.rows;
#pragma GCC unroll 6
  for (auto& column : sums) {
#pragma GCC unroll 4
    for (auto& row : column) {
#pragma GCC unroll 4
      for (Vec& sum : row) sum = Vec{};
    }
  }
#pragma GCC unroll 1
  for (std::int64_t column = 0; column < phases.columns; ++column) {
    const std::int64_t begin = column * phases.rows;
    if (column < phases.full_columns || x + Columns <= 5) {
      winograd_add<Columns, Columns>(points, weights, begin, begin + rows, sums);
    } else {
      winograd_add<Columns - 1, Columns>(points, weights, begin, begin + rows, sums);
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

// Rows of weights from `first` on.
template <int Outputs>
[[gnu::always_inline]] inline void winograd_rows_from(const WinogradArgs& args, int first) {
  alignas(64) float lines[6][Outputs][kWinogradTogether][kBlock];
#pragma GCC unroll 1
  for (int y = 0; y < 6; ++y) {
    WinogradSums<6> points;
    if constexpr (kWinogradColumns == 6) {
      winograd_multiply<6>(args, first, y, 0, points);
    } else {
      for (int x = 0; x < 6; ++x) {
        WinogradSums<1> sums;
        winograd_multiply<1>(args, first, y, x, sums);
        __builtin_memcpy(points[x], sums[0], sizeof sums[0]);
      }
    }
#pragma GCC unroll 4
    for (int row = 0; row < kWinogradTogether; ++row) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) {
        Vec sums[6];
        Vec outputs[Outputs];
#pragma GCC unroll 6
        for (int x = 0; x < 6; ++x) sums[x] = points[x][row][v];
        winograd_outputs_of(sums, outputs);
#pragma GCC unroll 4
        for (int x = 0; x < Outputs; ++x) store(lines[y][x][row] + v * kVecLanes, outputs[x]);
      }
    }
  }
#pragma GCC unroll 1
  for (int row = 0; row < kWinogradTogether; ++row) {
    const Vec bias = splat(args.bias[first + row]);
    float* const out = args.out + (first + row) * Outputs * Outputs * kBlock;
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

template <int Outputs>
void winograd_rows_of(const WinogradArgs& args) {
#pragma GCC unroll 1
  for (int first = 0; first < kWinogradRows; first += kWinogradTogether) winograd_rows_from<Outputs>(args, first);
}

inline void winograd_rows(const WinogradArgs& args) {
  if (args.outputs == 3) return winograd_rows_of<3>(args);
  return winograd_rows_of<4>(args);
}

}  // namespace sift::cpu::SIFT_ISA
