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
inline constexpr int kPanelWordShift = 11;
inline constexpr std::ptrdiff_t kPanelWordBytes = std::ptrdiff_t{1} << kPanelWordShift;
static_assert(kPanelWordBytes == 2 * kTileBytes);
// With a word behind the last one, that windows may reach into.
inline constexpr std::ptrdiff_t kPanelBytes = (kPanelWords + 1) * kPanelWordBytes;

// A tile of x, how far its rows are apart, and how far it is from that of the next word.
struct OperandTile {
  const std::byte* at;
  std::ptrdiff_t row_step;
  std::ptrdiff_t step;
};

// Sums of up to two tiles of weights, [words][2][16][64], and up to two of x; `step` sums from a row to the next. Tiles 0
// to 3 are sums, 4 and 5 weights, 6 and 7 x.
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

// Rows of weights in bits and values, from the first word on.
template <bool Masked>
class SpreadBits {
 public:
  [[gnu::always_inline]] SpreadBits(const PackedRowsArgs& args, std::int64_t row, int rows)
      : words_(args.words),
        rows_(rows),
        masks_(Masked ? args.masks + row * args.words : nullptr),
        ahead_(args, row, rows) {
    for (int r = 0; r < rows; ++r) values_[r] = args.values + args.starts[row + r];
  }

  // The next words, [words][2][16][64]; what is behind the last row means nothing.
  [[gnu::always_inline]] void put(std::int64_t words, std::byte* to) {
    const int upper = std::min(rows_, kTileRows);
    for (std::int64_t word = 0; word < words; ++word, to += kPanelWordBytes) {
      ahead_.prefetch_word();
      spread_word<Masked>(masks_, words_, values_, upper, to);
      if (rows_ > upper) {
        const std::uint64_t* const below = Masked ? masks_ + kTileRows * words_ : nullptr;
        spread_word<Masked>(below, words_, values_ + kTileRows, rows_ - upper, to + kTileBytes);
      }
      if constexpr (Masked) ++masks_;
    }
  }

 private:
  std::int64_t words_;
  int rows_;
  const std::uint64_t* masks_;
  const std::byte* values_[kPanelRows];
  FixedAhead<Masked> ahead_;
};

// Rows of weights in windows, from the first word on.
class SpreadWindows {
 public:
  SpreadWindows(const PackedRowsArgs& args, std::int64_t row, int rows) : windows_(args.windows) {
    for (; count_ * kTileRows < rows; ++count_) {
      const std::size_t* const starts = windows_.starts + row / kWindowRows + count_;
      Block& block = blocks_[count_];
      block = {starts[0], starts[1], 0};
      if (block.pair < block.end) block.base = windows_.moves[block.pair] * kMoveColumns;
      clear_words(block.behind, 1);
    }
  }

  // As SpreadBits has it. A window may reach into the word behind the last one, which is kept for the next call.
  void put(std::int64_t words, std::byte* to) {
    for (int i = 0; i < count_; ++i) {
      Block& block = blocks_[i];
      std::byte* const own = to + i * kTileBytes;
      std::byte* const behind = own + words * kPanelWordBytes;
      __builtin_memcpy(own, block.behind, kTileBytes);
      clear_words(own + kPanelWordBytes, words);
      put_pairs(block, words * kWordColumns, own, to + kPanelBytes);
      __builtin_memcpy(block.behind, behind, kTileBytes);
    }
  }

 private:
  struct Block {
    std::size_t pair;
    std::size_t end;
    std::int64_t base;  // column at which the pair's window begins, from the next word on
    alignas(64) std::byte behind[kTileBytes];
  };

  static void clear_words(std::byte* tile, std::int64_t words) {
    for (std::int64_t word = 0; word < words; ++word, tile += kPanelWordBytes) {
      for (int row = 0; row < kTileRows; ++row) _mm512_store_si512(tile + row * kTileRowBytes, _mm512_setzero_si512());
    }
  }

  // Places are found for sixteen lanes at a time, and bytes go there one by one; lanes without a weight write to
  // `nowhere`.
  [[gnu::always_inline]] void put_pairs(Block& block, std::int64_t columns, std::byte* to, std::byte* nowhere) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i rows = _mm512_slli_epi32(lanes, 6);
    const __m512i elsewhere = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(nowhere - to)), lanes);
    while (block.pair < block.end && block.base < columns) {
      constexpr std::int64_t kBytes = pair_bytes(ValueType::int8);
      const std::byte* pair = windows_.pairs + static_cast<std::int64_t>(block.pair) * kBytes;
      prefetch_lines(pair + kValuesAhead, 1, true);
      const __m512i base = _mm512_set1_epi32(static_cast<int>(block.base));
      for (int step = 0; step < kPairSteps; ++step, pair += kWindowRows) {
        const __m512i places = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(pair)));
        const __mmask16 empty = _mm512_test_epi32_mask(places, _mm512_set1_epi32(kNoWeight));
        const __m512i upper = _mm512_srli_epi32(_mm512_and_si512(places, _mm512_set1_epi32(kUpperHalf)), 2);
        const __m512i in_window = _mm512_add_epi32(_mm512_and_si512(places, _mm512_set1_epi32(31)), upper);
        const __m512i column = _mm512_add_epi32(base, in_window);
        const __m512i word = _mm512_slli_epi32(_mm512_srli_epi32(column, 6), kPanelWordShift);
        const __m512i in_word = _mm512_and_si512(column, _mm512_set1_epi32(63));
        const __m512i place = _mm512_add_epi32(_mm512_add_epi32(word, rows), in_word);
        alignas(64) std::int32_t at[kWindowRows];
        _mm512_store_si512(at, _mm512_mask_mov_epi32(place, empty, elsewhere));
        const std::byte* const values = pair + kPairWeights;
#pragma GCC unroll 16
        for (int lane = 0; lane < kWindowRows; ++lane) to[at[lane]] = values[lane];
      }
      if (++block.pair < block.end) block.base += windows_.moves[block.pair] * kMoveColumns;
    }
    block.base -= columns;
  }

  ColumnWindows windows_;
  Block blocks_[2];
  int count_ = 0;
};

// Parts of x differ in their rows, limbs and results.
template <typename Spread>
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
  alignas(64) std::byte weights[kPanelBytes + kWindowRows];
  alignas(64) std::int32_t sums[kPanelRows * kMostTiles * kTileLanes + 2 * kSumSlack];
  for (std::int64_t row = args.row_begin; row < args.row_end; row += kPanelRows) {
    const auto rows = static_cast<int>(std::min<std::int64_t>(kPanelRows, args.row_end - row));
    Spread spread(args, row, rows);
    for (std::int64_t first = 0; first < args.words; first += kPanelWords) {
      const std::int64_t words = std::min(kPanelWords, args.words - first);
      spread.put(words, weights);
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
        if (limbs == 3) {
          finish_sums<3>(parts[part], row + r, some, own + r * step, step);
        } else {
          finish_sums<4>(parts[part], row + r, some, own + r * step, step);
        }
      }
      own += tiles_of(parts[part].x_rows, limbs) * kTileLanes;
    }
  }
}

}  // namespace sift::cpu::SIFT_ISA
