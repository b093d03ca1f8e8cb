// Kernels of packed weights for avx512 with VBMI, VBMI2, VNNI and AMX; CMakeLists.txt gives this file its feature
// flags.
#define SIFT_ISA avx512_amx
#include "simd/packed/amx.h"
#include "simd/packed/fill_in.h"
#include "simd/packed/list.h"

namespace sift::cpu::SIFT_ISA {

const PackedRowKernels* packed_row_kernels();
const PackedRowKernels* packed_row_kernels() {
  static constexpr PackedRowKernels kTable{.operands = &amx_operands,
                                           .multiply = &multiply_amx,
                                           .list = &list_packed,
                                           .fill_in = &fill_in_rows,
                                           .list_below = &amx_list_below,
                                           .most_rows = &amx_most_rows,
                                           .most_rows_in_windows = &wide_most_rows_in_windows,
                                           .window_bytes = &wide_window_bytes,
                                           .floats_as_lists_below = kFloatsAsListsBelow,
                                           .bytes_as_lists_below = 0};
  return &kTable;
}

}  // namespace sift::cpu::SIFT_ISA
