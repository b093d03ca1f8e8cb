// Rows of sparse weights times several rows of x: products with weights of zero, which spreading values to the lanes of
// their columns makes, would be most of the work.
//
// A slice of the columns of a row of weights becomes a list in the first-level cache, by which all rows of x are
// multiplied. These lie interleaved, so that the operands of an active weight are one vector, and a slice of them stays
// in that cache, too. To multiply takes loads, and to make a list shuffles, so the list of the next row is made
// meanwhile: a word of its columns for each of a number of weights. That number is about the mean of a word, so that
// most loops end where they are expected to.
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
// Rows of weights that a slice is multiplied by before the next.
inline constexpr std::int64_t kListedRows = 32;
// Rows whose values are asked for before they become lists.
inline constexpr std::int64_t kRowsAhead = 6;
// Weights that are multiplied together where no list is made meanwhile.
inline constexpr int kListTurn = 8;

// What places count: addresses scale an index by up to as much.
inline constexpr std::ptrdiff_t kPlaceBytes = 8;
template <int Width>
inline constexpr std::uint16_t kPlaceUnit = Width * sizeof(float) / kPlaceBytes;
template <int Width>
using ListWriter = PlaceWriter<kPlaceUnit<Width>>;

// Behind the last weight are weights of zero, whose places are within x: a turn of them, or as many as are planned for.
struct ActiveList {
  alignas(64) std::uint16_t places[kMostListed + kListSlack];
  alignas(64) float values[kMostListed + kListSlack];
  std::int64_t count;
};

// parts += the products of `Count` weights of a list, each with the operands at its place.
template <int Width, int Count, int Chains>
[[gnu::always_inline]] inline void multiply_listed(const float* values, const std::uint16_t* places, const std::byte* x,
                                                   Lanes<Width> (&parts)[Chains]) {
  const auto add = [&](int i, std::ptrdiff_t place) __attribute__((always_inline)) {
    Lanes<Width> operands = *reinterpret_cast<const Lanes<Width>*>(x + place * kPlaceBytes);
#if defined(__AVX512F__)
    // In a register, so that it is the weight that the multiply-add reads from memory: its address has no index.
    __asm__("" : "+v"(operands));
#endif
    parts[i % Chains] += values[i] * operands;
  };
#if defined(__AVX2__)
  // One load for two places: loads take most of the time.
#pragma GCC unroll 8
  for (int i = 0; i + 1 < Count; i += 2) {
    std::uint32_t two;
    __builtin_memcpy(&two, places + i, sizeof two);
    __asm__("" : "+r"(two));
    add(i, two & 0xFFFFU);
    add(i + 1, two >> 16);
  }
  if constexpr (Count % 2 == 1) add(Count - 1, places[Count - 1]);
#else
#pragma GCC unroll 16
  for (int i = 0; i < Count; ++i) add(i, places[i]);
#endif
}

// sums[i] += the products of a list's weights with row i of x. Meanwhile the places of `next`, if there is one, are
// written, of as many words of columns; `masks` are their bits, null if all are active. The order of additions is the
// same with a next list and without: which rows are multiplied together depends on the number of threads.
template <int Width, int PerWord>
void multiply_list(const ActiveList& list, const std::byte* x, float* sums, const std::uint64_t* masks,
                   std::int64_t words, ActiveList* next) {
  // As many sums as hide the latency of a multiply-add and fit registers.
  constexpr int kVecs = Width <= kVecLanes ? 1 : Width / kVecLanes;
  constexpr int kChains = std::min(kRegisters / 2 / kVecs, kListTurn);
  Lanes<Width> parts[kChains]{};
  ListWriter<Width> writer(kPlaceUnit<Width>, next == nullptr ? nullptr : next->places);
  const float* values = list.values;
  const std::uint16_t* places = list.places;
#pragma GCC unroll 1
  for (std::int64_t word = 0; word < words; ++word, values += PerWord, places += PerWord) {
    if (next != nullptr) writer.add(masks == nullptr ? ~std::uint64_t{0} : masks[word]);
    multiply_listed<Width, PerWord>(values, places, x, parts);
  }
#pragma GCC unroll 1
  for (const float* const end = list.values + list.count; values < end; values += kListTurn, places += kListTurn) {
    multiply_listed<Width, kListTurn>(values, places, x, parts);
  }
  if (next != nullptr) next->count = writer.count();
#pragma GCC unroll 8
  for (int chain = 1; chain < kChains; ++chain) parts[0] += parts[chain];
  *reinterpret_cast<Lanes<Width>*>(sums) += parts[0];
}

template <int Width>
using MultiplyList = decltype(&multiply_list<Width, 1>);

// A product of lists that have about `per_word` weights of each word; `planned` is the number that it counts on.
template <int Width>
inline MultiplyList<Width> find_multiply_list(double per_word, std::int64_t& planned) {
  const auto plan = [&](std::int64_t count, MultiplyList<Width> multiply) {
    planned = count;
    return multiply;
  };
  if (per_word < 1.8) return plan(2, &multiply_list<Width, 2>);
  if (per_word < 3.7) return plan(4, &multiply_list<Width, 4>);
  if (per_word < 5.6) return plan(6, &multiply_list<Width, 6>);
  if (per_word < 6.6) return plan(7, &multiply_list<Width, 7>);
  if (per_word < 7.6) return plan(8, &multiply_list<Width, 8>);
  if (per_word < 8.5) return plan(9, &multiply_list<Width, 9>);
  if (per_word < 10.3) return plan(11, &multiply_list<Width, 11>);
  return plan(13, &multiply_list<Width, 13>);
}

// A slice of the columns of the weights.
struct ListedSlice {
  std::int64_t begin;  // words
  std::int64_t end;
  std::int64_t planned;  // weights of a row's list

  const std::uint64_t* masks(const PackedRowsArgs& args, std::int64_t row) const {
    return args.masks == nullptr ? nullptr : args.masks + row * args.words + begin;
  }
};

// The values of a list whose places are there, as floats. Goes on to what follows `value`.
inline void finish_list(const PackedRowsArgs& args, const ListedSlice& slice, std::int64_t row, const std::byte*& value,
                        ActiveList& list) {
  const auto size = static_cast<std::int64_t>(bytes_of(args.type));
  const std::int64_t count = list.count;
  // As many as are planned for: that the number is the same for all rows saves mispredicted branches.
  const std::int64_t left = (args.values + args.starts[args.row_end] - value) / size;
  if (args.group_columns != 0) {
    list_grouped_values(args.masks == nullptr ? nullptr : args.masks + row * args.words, args.words,
                        slice.begin * kWordColumns, std::min(slice.end * kWordColumns, args.columns),
                        args.scales + row * args.groups, args.group_columns, value, list.values);
  } else {
    list_values(args.type, value, std::max(count, std::min(slice.planned, left)), 1.0F, list.values);
  }
  value += count * size;
  constexpr std::int64_t kFilled = 32;
  std::fill_n(list.places + count, kFilled, std::uint16_t{0});
  std::fill_n(list.values + count, kFilled, 0.0F);
  const std::int64_t filled = count + kFilled;
  if (filled < slice.planned) {
    std::fill(list.places + filled, list.places + slice.planned, std::uint16_t{0});
    std::fill(list.values + filled, list.values + slice.planned, 0.0F);
  }
}

// Up to kListedRows rows of weights.
template <int Width>
void multiply_rows_by_lists(const PackedRowsArgs& args, std::int64_t row_begin, std::int64_t row_end) {
  const std::int64_t rows = row_end - row_begin;
  const std::int64_t slices = (args.words + kListedWords<Width> - 1) / kListedWords<Width>;
  const std::int64_t slice_words = (args.words + slices - 1) / slices;
  const std::byte* values[kListedRows + kRowsAhead];
  find_values(args, row_begin, row_end, kRowsAhead, values);
  const std::int64_t row_bytes = (values[rows] - values[0]) / rows;
  const std::int64_t value_lines = row_bytes / (64 * slices) + 1;
  const std::int64_t mask_lines = (slice_words + kLineWords - 1) / kLineWords;
  std::int64_t per_word = 0;
  const MultiplyList<Width> multiply = find_multiply_list<Width>(args.word_values, per_word);
  ActiveList lists[2];
  alignas(64) float sums[kListedRows * Width]{};
  for (std::int64_t begin = 0; begin < args.words; begin += slice_words) {
    const std::int64_t end = std::min(begin + slice_words, args.words);
    const std::int64_t words = end - begin;
    const ListedSlice slice{.begin = begin, .end = end, .planned = words * per_word};
    const auto* const x = reinterpret_cast<const std::byte*>(args.x + begin * kWordColumns * Width);
    ListWriter<Width> writer(kPlaceUnit<Width>, lists[0].places);
    const std::uint64_t* const masks = slice.masks(args, row_begin);
    for (std::int64_t word = 0; word < words; ++word) writer.add(masks == nullptr ? ~std::uint64_t{0} : masks[word]);
    lists[0].count = writer.count();
    finish_list(args, slice, row_begin, values[0], lists[0]);
    for (std::int64_t row = 0; row < rows; ++row) {
      // Behind the last row of a slice come those of the next, and behind the last slice other rows.
      const std::int64_t ahead = row + kRowsAhead;
      const bool is_next_slice = ahead >= rows && end < args.words && rows > kRowsAhead;
      const std::int64_t next = is_next_slice ? ahead - rows : ahead;
      const std::int64_t next_word = is_next_slice ? end : ahead < rows ? begin : 0;
      prefetch_lines(values[next], value_lines);
      if (args.masks != nullptr) {
        const std::uint64_t* const next_masks = args.masks + (row_begin + next) * args.words + next_word;
        prefetch_lines(next_masks, mask_lines);
      }
      const bool is_last = row + 1 == rows;
      ActiveList& made = lists[(row + 1) % 2];
      multiply(lists[row % 2], x, sums + row * Width, slice.masks(args, row_begin + row + 1), words,
               is_last ? nullptr : &made);
      if (!is_last) finish_list(args, slice, row_begin + row + 1, values[row + 1], made);
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
  for (std::int64_t row = args.row_begin; row < args.row_end; row += kListedRows) {
    multiply(args, row, std::min(row + kListedRows, args.row_end));
  }
}

}  // namespace sift::cpu::SIFT_ISA
