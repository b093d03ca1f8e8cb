// The table of kernels of packed weights of an extension of avx512: a source file defines SIFT_ISA and includes this.
#pragma once

#include "simd/packed/list.h"
#include "simd/packed/wide.h"

namespace sift::cpu::SIFT_ISA {

const PackedRowKernels* packed_row_kernels();
const PackedRowKernels* packed_row_kernels() {
  static constexpr PackedRowKernels kTable{&wide_operands, &multiply_wide, &list_packed, &wide_list_below,
                                           &wide_window_bytes};
  return &kTable;
}

}  // namespace sift::cpu::SIFT_ISA
