// Weights in windows of columns as the lists that micro-kernels for many rows take.
#pragma once

#include <algorithm>

#include "simd/packed/row_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// What is asked for of a block: `rows` lanes from `first` on, and for each lane whether it is one of them.
struct ListedLanes {
  std::int64_t block;
  std::int64_t first;
  std::int64_t rows;
  std::uint32_t asked[kWindowRows];
};

// Of rows from `row` on.
inline ListedLanes listed_lanes(const ListArgs& args, std::int64_t row) {
  ListedLanes lanes{};
  lanes.block = (args.first_row + row) / kWindowRows;
  lanes.first = args.first_row + row - lanes.block * kWindowRows;
  lanes.rows = std::min(kWindowRows - lanes.first, args.rows - row);
  std::fill_n(lanes.asked + lanes.first, lanes.rows, 1U);
  return lanes;
}

// Calls step(columns from the first that is listed on, whether each lane has a weight there, value of a lane) for each
// step of a block. Loops over lanes are without branches, as which lanes have none is not predicted.
template <typename Step>
[[gnu::always_inline]] inline void for_each_step(const ListArgs& args, const ListedLanes& lanes, Step step) {
  const auto width = static_cast<std::uint32_t>(args.end_column - args.first_column);
  const auto size = static_cast<std::int64_t>(bytes_of(args.type));
  for_each_stop(args.windows, lanes.block, args.first_column, args.end_column,
                [&](const std::byte* stop, std::int64_t base) __attribute__((always_inline)) {
                  const auto begin = static_cast<std::int32_t>(base - args.first_column);
                  const std::byte* const values = stop + stop_weights(args.type);
                  for (int i = 0; i < steps_of(args.type); ++i) {
                    std::uint32_t columns[kWindowRows];
                    std::uint32_t there[kWindowRows];
                    for (std::int64_t lane = 0; lane < kWindowRows; ++lane) {
                      const auto place = static_cast<std::uint8_t>(stop[stop_index(args.type, i, lane)]);
                      columns[lane] = static_cast<std::uint32_t>(begin + window_column(place));
                      there[lane] = lanes.asked[lane] & static_cast<std::uint32_t>((place & kNoWeight) == 0) &
                                    static_cast<std::uint32_t>(columns[lane] < width);
                    }
                    step(columns, there, [&](std::int64_t lane) __attribute__((always_inline)) {
                      return float_at(args.type, values + stop_index(args.type, i, lane) * size);
                    });
                  }
                });
}

inline void list_windows(const ListArgs& args) {
  std::uint32_t at = args.list_starts[0];
  for (std::int64_t row = 0; row < args.rows;) {
    const ListedLanes lanes = listed_lanes(args, row);
    std::uint32_t counts[kWindowRows]{};
    for_each_step(args, lanes,
                  [&](const std::uint32_t*, const std::uint32_t* there, auto) __attribute__((always_inline)) {
                    for (std::int64_t lane = 0; lane < kWindowRows; ++lane) counts[lane] += there[lane];
                  });
    for (std::int64_t i = 0; i < lanes.rows; ++i) {
      at += counts[lanes.first + i];
      args.list_starts[++row] = at;
    }
  }
  // Behind the last list, where more may be written: what lanes without a weight write.
  const std::uint32_t nowhere = at;
  for (std::int64_t row = 0; row < args.rows;) {
    const ListedLanes lanes = listed_lanes(args, row);
    std::uint32_t to[kWindowRows]{};
    float scales[kWindowRows]{};
    for (std::int64_t i = 0; i < lanes.rows; ++i, ++row) {
      to[lanes.first + i] = args.list_starts[row];
      scales[lanes.first + i] = args.scales == nullptr ? 1.0F : args.scales[row];
    }
    for_each_step(args, lanes,
                  [&](const std::uint32_t* columns, const std::uint32_t* there, auto value)
                      __attribute__((always_inline)) {
                        std::uint32_t own[kWindowRows];
                        std::uint32_t offsets[kWindowRows];
                        float weights[kWindowRows];
                        for (std::int64_t lane = 0; lane < kWindowRows; ++lane) {
                          own[lane] = there[lane] != 0 ? to[lane] : nowhere;
                          to[lane] += there[lane];
                          offsets[lane] = columns[lane] * args.column_bytes;
                          weights[lane] = scales[lane] * value(lane);
                        }
                        for (std::int64_t lane = 0; lane < kWindowRows; ++lane) {
                          args.offsets[own[lane]] = static_cast<std::uint16_t>(offsets[lane]);
                          args.out[own[lane]] = weights[lane];
                        }
                      });
  }
}

}  // namespace sift::cpu::SIFT_ISA
