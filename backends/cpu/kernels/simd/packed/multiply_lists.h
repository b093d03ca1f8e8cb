// Rows of sparse weights times several rows of x: products with weights of zero, which spreading values to the lanes of
// their columns makes, would be most of the work.
//
// A slice of the columns of a row of weights becomes a list, by which all rows of x are multiplied. These lie
// interleaved, so that the operands of an active weight are one vector, and a slice of them stays in the first-level
// cache with the list. An active weight takes a load of itself, of its place and of its operands, and a multiply-add;
// making lists takes as long at any density.
#pragma once

#include <algorithm>

#include "simd/packed/list_places.h"
#include "simd/packed/operands.h"
#include "simd/packed/prefetch.h"
#include "simd/stream.h"

namespace sift::cpu::SIFT_ISA {

// Words of interleaved rows of x that stay in the first-level cache: 32 KiB.
template <int Width>
inline constexpr std::int64_t kListedWords = 128 / Width;
inline constexpr std::int64_t kMostListed = kListedWords<4> * kWordColumns;
// Weights of a list that are multiplied in one turn. Weights of zero fill the last one.
inline constexpr std::int64_t kListTurn = 8;

struct ActiveList {
  alignas(64) std::uint16_t places[kMostListed + kListSlack];
  alignas(64) float values[kMostListed + kListSlack];
};

// Rows of weights that a slice is multiplied by before the next.
inline constexpr std::int64_t kListedRows = 32;
// Rows whose values are asked for before they become lists.
inline constexpr std::int64_t kRowsAhead = 6;

// sums[i] += the products of a list's weights with row i of x. The list has whole turns.
template <int Width>
[[gnu::always_inline]] inline void multiply_list(const ActiveList& list, std::int64_t count, const std::byte* x,
                                                 float* sums) {
  // As many sums as hide the latency of a multiply-add and fit registers.
  constexpr int kVecs = Width <= kVecLanes ? 1 : Width / kVecLanes;
  constexpr int kChains = std::min(kRegisters / 2 / kVecs, static_cast<int>(kListTurn));
  Lanes<Width> parts[kChains]{};
#pragma GCC unroll 1
  for (std::int64_t i = 0; i < count; i += kListTurn) {
#pragma GCC unroll 8
    for (int j = 0; j < kListTurn; ++j) {
      parts[j % kChains] += list.values[i + j] * *reinterpret_cast<const Lanes<Width>*>(x + list.places[i + j]);
    }
  }
#pragma GCC unroll 8
  for (int chain = 1; chain < kChains; ++chain) parts[0] += parts[chain];
  *reinterpret_cast<Lanes<Width>*>(sums) += parts[0];
}

// Up to kListedRows rows of weights.
template <int Width>
void multiply_rows_by_lists(const PackedRowsArgs& args, std::int64_t row_begin, std::int64_t row_end,
                            ListValues values_of) {
  constexpr int kColumnBytes = Width * static_cast<int>(sizeof(float));
  const std::int64_t rows = row_end - row_begin;
  const std::int64_t slices = (args.words + kListedWords<Width> - 1) / kListedWords<Width>;
  const std::int64_t slice_words = (args.words + slices - 1) / slices;
  const std::byte* values[kListedRows + kRowsAhead];
  find_values(args, row_begin, row_end, kRowsAhead, values);
  const std::int64_t all_bytes = values[rows] - values[0];
  const std::int64_t value_lines = all_bytes / (64 * rows * slices) + 1;
  const std::int64_t mask_lines = (slice_words + kLineWords - 1) / kLineWords;
  ActiveList list;
  alignas(64) float sums[kListedRows * Width]{};
  for (std::int64_t begin = 0; begin < args.words; begin += slice_words) {
    const std::int64_t end = std::min(begin + slice_words, args.words);
    const std::int64_t first = begin * kWordColumns;
    const std::int64_t last = std::min(end * kWordColumns, args.columns);
    const auto* const x = reinterpret_cast<const std::byte*>(args.x) + first * kColumnBytes;
    for (std::int64_t row = 0; row < rows; ++row) {
      // Behind the last row of a slice come those of the next, and behind the last slice other rows.
      const std::int64_t ahead = row + kRowsAhead;
      const bool is_next_slice = ahead >= rows && end < args.words && rows > kRowsAhead;
      const std::int64_t next = is_next_slice ? ahead - rows : ahead;
      const std::int64_t next_word = is_next_slice ? end : ahead < rows ? begin : 0;
      prefetch_lines(values[next], value_lines);
      const std::uint64_t* masks = nullptr;
      if (args.masks != nullptr) {
        masks = args.masks + (row_begin + row) * args.words;
        prefetch_lines(reinterpret_cast<const std::byte*>(args.masks + (row_begin + next) * args.words + next_word),
                       mask_lines);
      }
      const std::int64_t count = list_places(masks, args.words, first, last, kColumnBytes, list.places);
      values_of(values[row], count, 1.0F, list.values);
      if (args.group_columns != 0) {
        scale_values(masks, args.words, first, last, args.scales + (row_begin + row) * args.groups, args.group_columns,
                     list.values);
      }
      std::fill_n(list.places + count, kListTurn, std::uint16_t{0});
      std::fill_n(list.values + count, kListTurn, 0.0F);
      values[row] += count * static_cast<std::int64_t>(bytes_of(args.type));
      multiply_list<Width>(list, count, x, sums + row * Width);
    }
  }
  for (int i = 0; i < args.x_rows; ++i) {
    float* const out = args.out + i * args.x_stride;
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      const float scale = args.scales == nullptr || args.group_columns != 0 ? 1.0F : args.scales[row];
      out[row * args.row_stride] = args.bias[row] + scale * sums[(row - row_begin) * Width + i];
    }
  }
}

// Of x in the form `interleaved`.
inline void multiply_lists(const PackedRowsArgs& args) {
  const int width = interleaved_rows(args.x_rows);
  const auto multiply = width == 4   ? &multiply_rows_by_lists<4>
                        : width == 8 ? &multiply_rows_by_lists<8>
                                     : &multiply_rows_by_lists<16>;
  const ListValues values_of = list_values_of(args.type);
  for (std::int64_t row = args.row_begin; row < args.row_end; row += kListedRows) {
    multiply(args, row, std::min(row + kListedRows, args.row_end), values_of);
  }
}

}  // namespace sift::cpu::SIFT_ISA
