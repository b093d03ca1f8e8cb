// Rows of int8 weights times more than sixteen rows of x, as tiles.
//
// Thirty-two rows of weights are spread once for all rows of x, some words at a time: two tiles of a word, by two of x,
// are four products for four tiles that are loaded.
#pragma once

#include <algorithm>

#include "simd/packed/amx_operands.h"
#include "simd/packed/amx_spread.h"
#include "simd/packed/amx_sums.h"
#include "simd/packed/fixed_rows.h"

namespace sift::cpu::SIFT_ISA {

// Words that are spread before they are multiplied: they, and as many of two tiles of x, fit a first-level cache.
inline constexpr std::int64_t kPanelWords = 8;
inline constexpr int kPanelRows = 2 * kTileRows;
inline constexpr int kMostTiles = kMostParts * kMostRows * 4 / kTileLanes;  // of a word of x, of four limbs

// Two tiles of sixteen rows each.
inline constexpr std::ptrdiff_t kPanelWordBytes = 2 * kTileBytes;

// A tile of x, how far its rows are apart, and how far it is from that of the next word.
struct OperandTile {
  const std::byte* at;
  std::ptrdiff_t row_step;
  std::ptrdiff_t step;
};

// Sums of up to two tiles of weights, [words][2][16][64], and up to two of x; `step` sums from a row to the next. Tiles
// 0 to 3 are sums, 4 and 5 weights, 6 and 7 x.
template <int Weights, int Operands>
[[gnu::always_inline]] inline void add_panel(const std::byte* weights, const OperandTile* x, std::int64_t first_word,
                                             std::int64_t words, std::int32_t* sums, std::ptrdiff_t step) {
  const std::ptrdiff_t row_bytes = step * static_cast<std::ptrdiff_t>(sizeof(std::int32_t));
  std::int32_t* const below = sums + kTileRows * step;
  if (first_word == 0) {
    clear_tile<0>();
    if constexpr (Operands == 2) clear_tile<1>();
    if constexpr (Weights == 2) clear_tile<2>();
    if constexpr (Weights == 2 && Operands == 2) clear_tile<3>();
  } else {
    load_tile<0>(sums, row_bytes);
    if constexpr (Operands == 2) load_tile<1>(sums + kTileLanes, row_bytes);
    if constexpr (Weights == 2) load_tile<2>(below, row_bytes);
    if constexpr (Weights == 2 && Operands == 2) load_tile<3>(below + kTileLanes, row_bytes);
  }
  const std::byte* first = x[0].at + first_word * x[0].step;
  const std::byte* second = Operands == 2 ? x[1].at + first_word * x[1].step : nullptr;
  for (std::int64_t word = 0; word < words; ++word, weights += kPanelWordBytes) {
    load_tile<4>(weights, kTileRowBytes);
    load_tile<6>(first, x[0].row_step);
    add_tile_products<0, 4, 6>();
    first += x[0].step;
    if constexpr (Weights == 2) {
      load_tile<5>(weights + kTileBytes, kTileRowBytes);
      add_tile_products<2, 5, 6>();
    }
    if constexpr (Operands == 2) {
      load_tile<7>(second, x[1].row_step);
      add_tile_products<1, 4, 7>();
      if constexpr (Weights == 2) add_tile_products<3, 5, 7>();
      second += x[1].step;
    }
  }
  store_tile<0>(sums, row_bytes);
  if constexpr (Operands == 2) store_tile<1>(sums + kTileLanes, row_bytes);
  if constexpr (Weights == 2) store_tile<2>(below, row_bytes);
  if constexpr (Weights == 2 && Operands == 2) store_tile<3>(below + kTileLanes, row_bytes);
}

template <int Weights>
[[gnu::always_inline]] inline void add_panels(const std::byte* weights, const OperandTile* x, int tiles,
                                              std::int64_t first_word, std::int64_t words, std::int32_t* sums) {
  const std::ptrdiff_t step = tiles * kTileLanes;
  int tile = 0;
  for (; tile + 2 <= tiles; tile += 2) {
    add_panel<Weights, 2>(weights, x + tile, first_word, words, sums + tile * kTileLanes, step);
  }
  if (tile < tiles) add_panel<Weights, 1>(weights, x + tile, first_word, words, sums + tile * kTileLanes, step);
}

// Parts of x differ in their rows, limbs and results.
template <bool Masked>
void multiply_panels(const PackedRowsArgs* parts, int count) {
  const PackedRowsArgs& args = parts[0];
  OperandTile x[kMostTiles];
  int tiles = 0;
  for (int part = 0; part < count; ++part) {
    const int own = tiles_of(parts[part].x_rows, limbs_of(parts[part].form));
    const auto* const at = reinterpret_cast<const std::byte*>(parts[part].x);
    for (int tile = 0; tile < own; ++tile) {
      x[tiles++] = {at + tile * kTileRowBytes, own * kTileRowBytes, own * kTileBytes};
    }
  }
  alignas(64) std::byte weights[kPanelWords * kPanelWordBytes];
  alignas(64) std::int32_t sums[kPanelRows * kMostTiles * kTileLanes + 2 * kSumSlack];
  for (std::int64_t row = args.row_begin; row < args.row_end; row += kPanelRows) {
    const auto rows = static_cast<int>(std::min<std::int64_t>(kPanelRows, args.row_end - row));
    const int upper = std::min(rows, kTileRows);
    const std::uint64_t* masks = Masked ? args.masks + row * args.words : nullptr;
    const std::byte* values[kPanelRows];
    for (int r = 0; r < rows; ++r) values[r] = args.values + args.starts[row + r];
    FixedAhead<Masked> ahead(args, row, rows);
    for (std::int64_t first = 0; first < args.words; first += kPanelWords) {
      const std::int64_t words = std::min(kPanelWords, args.words - first);
      for (std::int64_t word = 0; word < words; ++word) {
        std::byte* const to = weights + word * kPanelWordBytes;
        ahead.prefetch_word();
        spread_word<Masked>(masks, args.words, values, upper, to);
        if (rows > upper) {
          const std::uint64_t* const below = Masked ? masks + kTileRows * args.words : nullptr;
          spread_word<Masked>(below, args.words, values + kTileRows, rows - upper, to + kTileBytes);
        }
        if constexpr (Masked) ++masks;
      }
      if (rows > kTileRows) {
        add_panels<2>(weights, x, tiles, first, words, sums);
      } else {
        add_panels<1>(weights, x, tiles, first, words, sums);
      }
    }
    const std::ptrdiff_t step = tiles * kTileLanes;
    const std::int32_t* own = sums;
    for (int part = 0; part < count; ++part) {
      const int limbs = limbs_of(parts[part].form);
      for (int r = 0; r < rows; r += kTileRows) {
        const int some = std::min(kTileRows, rows - r);
        switch (limbs) {
          case 2: finish_sums<2>(parts[part], row + r, some, own + r * step, step); break;
          case 3: finish_sums<3>(parts[part], row + r, some, own + r * step, step); break;
          default: finish_sums<4>(parts[part], row + r, some, own + r * step, step); break;
        }
      }
      own += tiles_of(parts[part].x_rows, limbs) * kTileLanes;
    }
  }
}

}  // namespace sift::cpu::SIFT_ISA
