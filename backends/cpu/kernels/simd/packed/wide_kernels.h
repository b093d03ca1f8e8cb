// The table of kernels of packed weights of an extension of avx512: a source file defines SIFT_ISA, includes this, and
// returns the table or one with other kernels in it.
#pragma once

#include "simd/packed/fill_in.h"
#include "simd/packed/list.h"
#include "simd/packed/wide.h"

namespace sift::cpu::SIFT_ISA {

inline constexpr PackedRowKernels kWideKernels{.operands = &wide_operands,
                                               .multiply = &multiply_parts<&multiply_wide>,
                                               .list = &list_packed,
                                               .fill_in = &fill_in_rows,
                                               .list_below = &wide_list_below,
                                               .most_rows = &wide_most_rows,
                                               .most_rows_in_windows = &wide_most_rows_in_windows,
                                               .window_bytes = &wide_window_bytes,
                                               .floats_as_lists_below = kFloatsAsListsBelow,
                                               .bytes_as_lists_below = 0};

const PackedRowKernels* packed_row_kernels();

}  // namespace sift::cpu::SIFT_ISA
