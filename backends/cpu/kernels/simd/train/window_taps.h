// The taps of a window that a row and a column of a tensor have.
#pragma once

#include "simd/train/lane_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// use(place, taps from the first) for each position that the windows join this column of the row to, taps ascending.
// Rows and Columns are numbers of them that are known, or kAnyTaps. From the first on, taps are the same for all
// columns.
inline constexpr std::int32_t kAnyTaps = 0;
template <std::int32_t Rows, std::int32_t Columns, typename Use>
[[gnu::always_inline]] inline void use_taps(const PoolRow& row, const PoolTaps& column, Use use) {
  const std::int32_t rows = Rows == kAnyTaps ? row.row.count : Rows;
  const std::int32_t columns = Columns == kAnyTaps ? column.count : Columns;
  std::int64_t row_place = row.row.place + column.place;
  std::int32_t row_tap = 0;
#pragma GCC unroll 3
  for (std::int32_t i = 0; i < rows; ++i) {
    std::int64_t place = row_place;
    std::int32_t tap = row_tap;
#pragma GCC unroll 3
    for (std::int32_t j = 0; j < columns; ++j) {
      use(place, tap);
      place += row.column_steps.place;
      tap += row.column_steps.tap;
    }
    row_place += row.row_steps.place;
    row_tap += row.row_steps.tap;
  }
}

// The usual numbers without loops.
template <typename Use>
[[gnu::always_inline]] inline void for_each_tap(const PoolRow& row, const PoolTaps& column, Use use) {
  const std::int32_t rows = row.row.count;
  const std::int32_t columns = column.count;
  if (rows == 3 && columns == 3) return use_taps<3, 3>(row, column, use);
  if (rows == 2 && columns == 2) return use_taps<2, 2>(row, column, use);
  use_taps<kAnyTaps, kAnyTaps>(row, column, use);
}

}  // namespace sift::cpu::SIFT_ISA
