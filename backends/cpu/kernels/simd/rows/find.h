// The micro-kernel of a tile: by its size and by the form of the weights.
#pragma once

#include "simd/kernel_table.h"
#include "simd/rows/csr.h"
#include "simd/rows/dense.h"
#include "simd/rows/tile.h"

namespace sift::cpu::SIFT_ISA {

template <int Rows, int Cols>
constexpr RowsFunction rows_of(WeightForm form) {
  constexpr int kVecs = Tile<Rows, Cols>::kVecs;
  if constexpr (Rows * Cols <= 14 && kVecs >= kEnoughSums && kVecs <= kAccumulators) {
    if (form == WeightForm::csr) return &rows_csr<Tile<Rows, Cols>>;
  }
  if constexpr (Rows == 1 && kVecs < kEnoughSums && 2 * kVecs <= kAccumulators) {
    constexpr int kTimes = (kEnoughSums + kVecs) / kVecs;  // as many as are enough
    constexpr int kTogether = kTimes > 4 ? 4 : kTimes;
    if (form == WeightForm::csr) return &rows_csr_apart<Tile<Rows, Cols>, kTogether>;
  }
  if constexpr (2 * kVecs <= kRegisters - 3) {
    if (form == WeightForm::csr_pairs) return &rows_csr_pairs<Rows, Cols>;
    if constexpr (4 * kVecs <= kRegisters - 3) {
      if (form == WeightForm::dense) return &rows_dense<Rows, Cols, 4>;
    } else {
      if (form == WeightForm::dense) return &rows_dense<Rows, Cols, 2>;
    }
  }
  return nullptr;
}

template <int Rows, int Last, int Cols = 1>
RowsFunction find_rows_of_width(WeightForm form, int columns) {
  if (columns == Cols) return rows_of<Rows, Cols>(form);
  if constexpr (Cols < Last) {
    return find_rows_of_width<Rows, Last, Cols + 1>(form, columns);
  } else {
    return nullptr;
  }
}

inline RowsFunction find_rows(WeightForm form, int rows, int columns) {
  if (rows == 1) return find_rows_of_width<1, 14>(form, columns);
  if (rows == 2) return find_rows_of_width<2, 7>(form, columns);
  return nullptr;
}

}  // namespace sift::cpu::SIFT_ISA
