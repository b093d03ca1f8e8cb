// Rows of int8 weights times up to sixteen rows of x, as tiles.
//
// Sixteen rows of weights are spread at a time, a word of 64 columns of each, which is a tile. A product of two tiles
// takes as long as spreading five words, so several rows of x take hardly longer than one.
#pragma once

#include <algorithm>

#include "simd/packed/amx_operands.h"
#include "simd/packed/amx_spread.h"
#include "simd/packed/amx_sums.h"
#include "simd/packed/fixed_rows.h"

namespace sift::cpu::SIFT_ISA {

inline constexpr int kWeightsTile = 4;
inline constexpr int kOperandsTile = 5;

// A word of sixteen rows of weights, by that of all rows of x; tile i of sums is that of tile i of x. A product does
// not wait for all of the one before that added to the same tile.
template <int Tiles, int Tile = 0>
[[gnu::always_inline]] inline void multiply_tiles(const std::byte* weights, const std::byte* x) {
  if constexpr (Tile == 0) load_tile<kWeightsTile>(weights, kTileRowBytes);
  constexpr int kOperands = kOperandsTile + Tile % 2;
  load_tile<kOperands>(x + Tile * kTileRowBytes, Tiles * kTileRowBytes);
  add_tile_products<Tile, kWeightsTile, kOperands>();
  if constexpr (Tile + 1 < Tiles) multiply_tiles<Tiles, Tile + 1>(weights, x);
}

// Tiles of sums side by side, [16][tiles][16].
template <int Tiles, int Tile = 0>
[[gnu::always_inline]] inline void store_sums(std::int32_t* to) {
  store_tile<Tile>(to + Tile * kTileLanes, Tiles * kTileRowBytes);
  if constexpr (Tile + 1 < Tiles) store_sums<Tiles, Tile + 1>(to);
}

template <int Tiles, int Tile = 0>
[[gnu::always_inline]] inline void clear_sums() {
  clear_tile<Tile>();
  if constexpr (Tile + 1 < Tiles) clear_sums<Tiles, Tile + 1>();
}

// The sums of up to sixteen rows of weights.
template <int Tiles, bool Masked>
[[gnu::always_inline]] inline void sum_rows(const PackedRowsArgs& args, std::int64_t row, int count, std::int32_t* to) {
  // A tile is read from memory: that of a word is multiplied when it has long been written.
  constexpr int kBuffers = 4;
  constexpr std::int64_t kBehind = 2;
  alignas(64) std::byte weights[kBuffers][kTileBytes];
  const std::int64_t words = args.words;
  const std::uint64_t* masks = Masked ? args.masks + row * words : nullptr;
  const std::byte* values[kTileRows];
  for (int r = 0; r < count; ++r) values[r] = args.values + args.starts[row + r];
  FixedAhead<Masked> ahead(args, row, count);
  const auto* x = reinterpret_cast<const std::byte*>(args.x);
  clear_sums<Tiles>();
  for (std::int64_t word = 0; word < words; ++word) {
    ahead.prefetch_word();
    spread_word<Masked>(masks, words, values, count, weights[word % kBuffers]);
    if constexpr (Masked) ++masks;
    if (word < kBehind) continue;
    multiply_tiles<Tiles>(weights[(word - kBehind) % kBuffers], x);
    x += Tiles * kTileBytes;
  }
  for (std::int64_t word = std::max(words - kBehind, std::int64_t{0}); word < words; ++word) {
    multiply_tiles<Tiles>(weights[word % kBuffers], x);
    x += Tiles * kTileBytes;
  }
  store_sums<Tiles>(to);
}

// Sums are finished while those of the next rows of weights are under way.
template <int Limbs, int Tiles, bool Masked>
void multiply_few_tiles(const PackedRowsArgs& args) {
  constexpr int kSums = kTileRows * Tiles * kTileLanes;
  alignas(64) std::int32_t sums[2][kSums + 2 * kSumSlack];
  int before = 0;
  int number = 0;
  std::int64_t row = args.row_begin;
  while (row < args.row_end) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kTileRows, args.row_end - row));
    if (count == kTileRows) {
      sum_rows<Tiles, Masked>(args, row, kTileRows, sums[number]);
    } else {
      sum_rows<Tiles, Masked>(args, row, count, sums[number]);
    }
    number ^= 1;
    if (before > 0) finish_sums<Limbs>(args, row - before, before, sums[number], Tiles * kTileLanes);
    before = count;
    row += count;
  }
  if (before > 0) finish_sums<Limbs>(args, row - before, before, sums[number ^ 1], Tiles * kTileLanes);
}

template <int Limbs, bool Masked>
void multiply_few_rows(const PackedRowsArgs& args) {
  switch (tiles_of(args.x_rows, Limbs)) {
    case 1: return multiply_few_tiles<Limbs, 1, Masked>(args);
    case 2: return multiply_few_tiles<Limbs, 2, Masked>(args);
    case 3: return multiply_few_tiles<Limbs, 3, Masked>(args);
    default: return multiply_few_tiles<Limbs, 4, Masked>(args);
  }
}

}  // namespace sift::cpu::SIFT_ISA
