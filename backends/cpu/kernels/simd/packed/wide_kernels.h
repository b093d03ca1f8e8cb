// The table of kernels of packed weights of an extension of avx512: a source file defines SIFT_ISA and includes this.
#pragma once

#include "simd/packed/fill_in.h"
#include "simd/packed/list.h"
#include "simd/packed/wide.h"

namespace sift::cpu::SIFT_ISA {

const PackedRowKernels* packed_row_kernels();
const PackedRowKernels* packed_row_kernels() {
  static constexpr PackedRowKernels kTable{.operands = &wide_operands,
                                           .multiply = &multiply_parts<&multiply_wide>,
                                           .list = &list_packed,
                                           .fill_in = &fill_in_rows,
                                           .list_below = &wide_list_below,
                                           .most_rows = &wide_most_rows,
                                           .most_rows_in_windows = &wide_most_rows_in_windows,
                                           .window_bytes = &wide_window_bytes,
                                           .floats_as_lists_below = kFloatsAsListsBelow,
                                           .bytes_as_lists_below = 0};
  return &kTable;
}

}  // namespace sift::cpu::SIFT_ISA
