// Lists of live quads of four rows side by side, times blocks of operands.
#pragma once

#include <algorithm>

#include "simd/int8/kernel_table.h"
#include "simd/int8/lanes.h"
#include "simd/rows/offsets.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512VNNI__)

inline constexpr int kSellBlocks = 6;
inline constexpr std::int64_t kQuadsAhead = 1024;

// Four quads in one load, each to be spread by a shuffle: loads are what dot products with operands in memory are short
// of.
[[gnu::always_inline]] inline __m512i four_quads(const std::uint32_t* quads) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(quads)));
}

template <int Row>
[[gnu::always_inline]] inline Words quad_of(__m512i four) {
  return reinterpret_cast<Words>(_mm512_shuffle_epi32(four, static_cast<_MM_PERM_ENUM>(Row * 0b01010101)));
}

template <int Row, int Blocks>
[[gnu::always_inline]] inline void add_quads(const SellQuadsArgs& args, const std::uint8_t* panel, __m512i four,
                                             const OffsetsAhead<4>& ahead, Ints (&sums)[kSellRows][Blocks]) {
  const std::uint8_t* const operands = panel + ahead[Row] * kBlockBytes;
  const Words weights = quad_of<Row>(four);
#pragma GCC unroll 8
  for (int b = 0; b < Blocks; ++b) {
    sums[Row][b] = dot(sums[Row][b], load_words(operands + b * args.block_bytes), weights);
  }
  if constexpr (Row + 1 < kSellRows) add_quads<Row + 1, Blocks>(args, panel, four, ahead, sums);
}

// A line of columns, and the two of their quads, for each line's worth of a list.
[[gnu::always_inline]] inline void prefetch_quads(const std::uint32_t* quads, const std::uint16_t* columns,
                                                  std::ptrdiff_t count) {
#pragma GCC unroll 1
  for (std::ptrdiff_t i = kQuadsAhead; i < kQuadsAhead + count; i += 32) {
    __builtin_prefetch(columns + i, 0, 2);
    __builtin_prefetch(quads + i, 0, 2);
    __builtin_prefetch(quads + i + 16, 0, 2);
  }
}

// Of few blocks, every other step has its own sums, so that one does not wait for the last one's.
template <int Blocks>
void sell_of_blocks(const SellQuadsArgs& args, std::int64_t first) {
  constexpr int kChains = Blocks == 1 ? 2 : 1;
  const std::uint8_t* const panel = args.panel + first * args.block_bytes;
  const std::uint16_t* column = args.columns + args.starts[0];
  const std::uint32_t* quad = args.quads + args.starts[0];
  for (std::int64_t place = 0; place < args.rows; place += kSellRows) {
    Ints sums[kChains][kSellRows][Blocks]{};
    const std::uint16_t* const end = args.columns + args.starts[place / kSellRows + 1];
    prefetch_quads(quad, column, end - column);
    OffsetsAhead<4> ahead(column);
    const auto step = [&](Ints(&own)[kSellRows][Blocks]) __attribute__((always_inline)) {
      ahead.step(column + kSellRows);
      add_quads<0, Blocks>(args, panel, four_quads(quad), ahead, own);
      column += kSellRows;
      quad += kSellRows;
    };
    if constexpr (kChains == 2) {
#pragma GCC unroll 1
      while (end - column >= 2 * kSellRows) {
        step(sums[0]);
        step(sums[1]);
      }
      if (column != end) step(sums[0]);
    } else {
#pragma GCC unroll 1
      while (column != end) step(sums[0]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kSellRows; ++r) {
      const std::int64_t row = args.order[place + r];
      const Ints bias = args.bias[row] - Ints{};
#pragma GCC unroll 8
      for (int b = 0; b < Blocks; ++b) {
        Ints sum = sums[0][r][b] + bias;
        if constexpr (kChains == 2) sum += sums[1][r][b];
        store_words(args.sums + ((first + b) * args.group_rows + row) * kQuadBlock, reinterpret_cast<Words>(sum));
      }
    }
  }
}

template <int Blocks = kSellBlocks>
void sell_of_some(const SellQuadsArgs& args, std::int64_t first, std::int64_t count) {
  if (count == Blocks) return sell_of_blocks<Blocks>(args, first);
  if constexpr (Blocks > 1) sell_of_some<Blocks - 1>(args, first, count);
}

inline void sell_rows(const SellQuadsArgs& args) {
  const std::int64_t most = std::min<std::int64_t>(args.tile_blocks, kSellBlocks);
  const std::int64_t tiles = (args.blocks + most - 1) / most;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t first = args.blocks * tile / tiles;
    sell_of_some(args, first, args.blocks * (tile + 1) / tiles - first);
  }
}

#endif

}  // namespace sift::cpu::SIFT_ISA
