// Rows of packed weights times few rows of x.
#pragma once

#include <algorithm>

#include "simd/packed/expand.h"
#include "simd/packed/finish.h"
#include "simd/packed/multiply_group.h"
#include "simd/packed/multiply_lists.h"
#include "simd/packed/multiply_windows.h"
#include "simd/packed/operands.h"
#include "simd/packed/prefetch.h"
#include "simd/packed/row_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Calls line() before the words whose masks are a line, and step(word, bits) for each word of a row.
template <bool Masked, typename Line, typename Step>
[[gnu::always_inline]] inline void for_each_word(const PackedRowsArgs& args, std::int64_t row, Line line, Step step) {
  const std::uint64_t* const masks = Masked ? args.masks + row * args.words : nullptr;
  for (std::int64_t first = 0; first < args.words; first += kLineWords) {
    const std::int64_t end = std::min(first + kLineWords, args.words);
    line();
    if constexpr (Masked) prefetch_lines(masks + first + kMasksAhead, 1, args.into_level2);
    for (std::int64_t word = first; word < end; ++word) step(word, Masked ? masks[word] : ~std::uint64_t{0});
  }
}

template <bool Masked, typename Step>
[[gnu::always_inline]] inline void for_each_word(const PackedRowsArgs& args, std::int64_t row, Step step) {
  for_each_word<Masked>(args, row, []() __attribute__((always_inline)) {}, step);
}

// Active weights one by one: where there are no instructions that spread them, and where x has what zeros of weights
// must not meet.
inline void multiply_one_by_one(const PackedRowsArgs& args) {
  if (args.windows.starts != nullptr) return multiply_windows_one_by_one(args);
  const std::size_t size = bytes_of(args.type);
  const std::ptrdiff_t x_floats = args.words * kWordColumns;
  for (std::int64_t row = args.row_begin; row < args.row_end; ++row) {
    for (int i = 0; i < args.x_rows; ++i) {
      const float* const x = args.x + i * x_floats;
      const std::byte* value = args.values + args.starts[row];
      float sums[4] = {0, 0, 0, 0};
      const auto add = [&](std::int64_t word, std::uint64_t bits) __attribute__((always_inline)) {
        if (i == 0) prefetch_values(args, value);
        for (unsigned turn = 0; bits != 0; bits &= bits - 1, ++turn, value += size) {
          const std::int64_t column = word * kWordColumns + __builtin_ctzll(bits);
          float weight = float_at(args.type, value);
          if (args.group_columns != 0) weight *= args.scales[row * args.groups + column / args.group_columns];
          sums[turn & 3U] += weight * x[column];
        }
      };
      if (args.masks != nullptr) {
        for_each_word<true>(args, row, add);
      } else {
        for_each_word<false>(args, row, add);
      }
      finish(args, row, i, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
  }
}

#if defined(__AVX2__)

// Values of few words are asked for at once: where a word takes 25 cycles, a loop for its one or two lines takes three.
// Wider registers take less time for a word, and wait for memory more.
inline constexpr bool kAsksByLine = kVecLanes < 16;

// `First` to before `First + Count` of the rows of x.
template <ValueType Type, int Count, bool Masked, bool Grouped>
void multiply_some(const PackedRowsArgs& args, std::int64_t row_begin, std::int64_t row_end, int first) {
  constexpr float kUnit = Masked ? kExpandedUnit<Type> : 1.0F;
  constexpr int kSums = Count == 1 ? 4 : Count == 2 ? 2 : 1;  // as many as hide the latency of an addition
  const std::ptrdiff_t x_floats = args.words * kWordColumns;
  const float* const x = args.x + first * x_floats;
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const std::byte* value = args.values + args.starts[row];
    const float* scale = Grouped ? args.scales + row * args.groups : nullptr;
    const float* const last_scale = Grouped ? scale + args.groups - 1 : nullptr;
    std::int64_t scaled = args.group_columns;  // columns that are left of the group
    Vec sums[Count][kSums]{};
    const auto ask = [&]() __attribute__((always_inline)) {
      if constexpr (kAsksByLine) prefetch_lines(value + kValuesAhead, args.lines_per_block, args.into_level2);
    };
    for_each_word<Masked>(args, row, ask, [&](std::int64_t word, std::uint64_t bits) __attribute__((always_inline)) {
      if constexpr (!kAsksByLine) prefetch_values(args, value);
      const float* const operands = x + word * kWordColumns;
      const WordParts parts = parts_of(bits);
#pragma GCC unroll 8
      for (int part = 0; part < WordParts::kCount; ++part) {
        const std::byte* const at = value + parts.before[part] * bytes_of(Type);
        Vec weights = Masked ? expanded<Type>(parts.lanes[part], at) : converted<Type>(at);
        if constexpr (Grouped) {
          if (scaled == 0) {
            // Columns behind the last one have no group.
            if (scale != last_scale) ++scale;
            scaled = args.group_columns;
          }
          weights *= splat(kUnit * *scale);
          scaled -= kVecLanes;
        }
#pragma GCC unroll 4
        for (int i = 0; i < Count; ++i) {
          sums[i][part % kSums] += weights * load(operands + i * x_floats + part * kVecLanes);
        }
      }
      value += parts.before[WordParts::kCount] * bytes_of(Type);
    });
#pragma GCC unroll 4
    for (int i = 0; i < Count; ++i) {
      Vec sum = sums[i][0];
      for (int s = 1; s < kSums; ++s) sum += sums[i][s];
      finish(args, row, first + i, (Grouped ? 1.0F : kUnit) * lane_sum(sum));
    }
  }
}

using MultiplySome = void (*)(const PackedRowsArgs&, std::int64_t row_begin, std::int64_t row_end, int first);

template <ValueType Type, bool Masked, bool Grouped>
MultiplySome some_of(int count) {
  switch (count) {
    case 1: return &multiply_some<Type, 1, Masked, Grouped>;
    case 2: return &multiply_some<Type, 2, Masked, Grouped>;
    case 3: return &multiply_some<Type, 3, Masked, Grouped>;
    default: return &multiply_some<Type, 4, Masked, Grouped>;
  }
}

template <bool Masked>
MultiplySome some_of_type(const PackedRowsArgs& args, int count) {
  const bool grouped = args.group_columns != 0;
  switch (args.type) {
    case ValueType::float32: return some_of<ValueType::float32, Masked, false>(count);
    case ValueType::bfloat16: return some_of<ValueType::bfloat16, Masked, false>(count);
    case ValueType::float16: return some_of<ValueType::float16, Masked, false>(count);
    case ValueType::int8: break;
  }
  return grouped ? some_of<ValueType::int8, Masked, true>(count) : some_of<ValueType::int8, Masked, false>(count);
}

template <ValueType Type, bool Masked>
MultiplySome group_of(int rows) {
#if defined(__AVX512F__)
  if (rows == kRowsOfGroup / 2) return &multiply_group<Type, Masked, kRowsOfGroup / 2>;
#endif
  return rows == kRowsOfGroup ? &multiply_group<Type, Masked, kRowsOfGroup> : nullptr;
}

template <bool Masked>
MultiplySome group_of_type(ValueType type, int rows) {
  switch (type) {
    case ValueType::float32: return group_of<ValueType::float32, Masked>(rows);
    case ValueType::bfloat16: return group_of<ValueType::bfloat16, Masked>(rows);
    case ValueType::float16: return group_of<ValueType::float16, Masked>(rows);
    case ValueType::int8: return group_of<ValueType::int8, Masked>(rows);
  }
  return nullptr;
}

// Runs some(args, count)'s function for all rows of x: groups as they were placed, and others four at a time, which
// stay in the first-level cache. Some rows of weights are taken for all rows of x before the next: those are then in
// the second-level cache.
template <bool Masked, typename Some>
[[gnu::always_inline]] inline void multiply_by(const PackedRowsArgs& args, Some some) {
  constexpr int kTogether = 4;
  const bool in_groups = args.group_columns == 0 && (args.type != ValueType::int8 || args.form == OperandForm::natural);
  const auto group_at = [&](int first) { return in_groups ? next_natural_group(args.type, args.x_rows - first) : 0; };
  if (args.x_rows <= kTogether && group_at(0) == 0) {
    return some(args, args.x_rows)(args, args.row_begin, args.row_end, 0);
  }
  for (std::int64_t row = args.row_begin; row < args.row_end; row += kRowsAtOnce) {
    const std::int64_t end = std::min(row + kRowsAtOnce, args.row_end);
    for (int first = 0; first < args.x_rows;) {
      if (const int group = group_at(first); group > 0) {
        group_of_type<Masked>(args.type, group)(args, row, end, first);
        first += group;
      } else {
        const int count = std::min(kTogether, args.x_rows - first);
        some(args, count)(args, row, end, first);
        first += count;
      }
    }
  }
}

// Looking activations up takes a vector of AVX-512. From memory, more bytes take longer than spreading values does.
inline double window_bytes(ValueType type) {
  if (kVecLanes < 16) return 0;
  switch (type) {
    case ValueType::float32: return 1.35;
    case ValueType::int8: return 1.5;
    default: return 1.2;
  }
}

inline void multiply_packed(const PackedRowsArgs& args) {
  if (args.form == OperandForm::unbounded) return multiply_one_by_one(args);
  if (args.form == OperandForm::interleaved) return multiply_lists(args);
#if defined(__AVX512F__)
  if (args.form == OperandForm::windowed) return multiply_windows(args);
#endif
  args.masks != nullptr ? multiply_by<true>(args, &some_of_type<true>) : multiply_by<false>(args, &some_of_type<false>);
}

#if defined(__AVX512F__)
// The columns' 16 bits are fewer then than a bit for each column, or little more.
inline constexpr double kFloatsAsListsBelow = 0.125;
inline constexpr double kBytesAsListsBelow = 0;

// Without an instruction that compresses columns, lists take long to make.
inline double list_below(const PackedKind&, int x_rows) { return x_rows > 12 ? 0.2 : 0; }

inline std::int64_t most_rows(const PackedKind&, double) { return 2 * kMostRows; }
#else
// In a cache, bringing floats and bytes to their columns takes as long as lists of about 0.5 and 0.4. Lists are more
// bytes: 1.4 times as many at 0.35, and of int8, which is chosen for its size, 1.8 times at 0.2
// (docs/cpu-kernel-notes.md).
inline constexpr double kFloatsAsListsBelow = 0.35;
inline constexpr double kBytesAsListsBelow = 0.2;

// Densities at which lists take as long as spread values do, by rows of x (docs/cpu-kernel-notes.md).
inline constexpr double kListedBelowRows[kMostRows] = {0,   0,    0,    0,    0.3,  0.36, 0.36, 0.3,
                                                       0.4, 0.45, 0.45, 0.48, 0.65, 0.65, 0.65, 0.65};

inline double list_below(const PackedKind&, int x_rows) { return kListedBelowRows[x_rows - 1]; }

// Of more rows, lists that are made once for all of them take less time, and dense rows, which have the zeros of dense
// enough weights, from fewer rows on.
inline std::int64_t most_rows(const PackedKind&, double density) { return density >= 0.55 ? 12 : kMostRows; }
#endif

#else

inline void multiply_packed(const PackedRowsArgs& args) {
  if (args.form == OperandForm::interleaved) return multiply_lists(args);
  multiply_one_by_one(args);
}

// At any density: otherwise each row of x goes through the bits of the weights again.
inline double list_below(const PackedKind&, int x_rows) { return x_rows == 1 ? 0 : 2; }

inline std::int64_t most_rows(const PackedKind&, double) { return kMostRows; }

inline double window_bytes(ValueType) { return 0; }

// Values are taken one by one.
inline constexpr double kFloatsAsListsBelow = 1;
inline constexpr double kBytesAsListsBelow = 0;

#endif

// For more, lists that are made of weights in windows take less time.
inline std::int64_t most_rows_in_windows(ValueType) { return 256; }

template <void (*Multiply)(const PackedRowsArgs&)>
void multiply_parts(const PackedRowsArgs* parts, int count) {
  for (int part = 0; part < count; ++part) Multiply(parts[part]);
}

}  // namespace sift::cpu::SIFT_ISA
