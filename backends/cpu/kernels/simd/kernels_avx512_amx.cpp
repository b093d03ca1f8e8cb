// Kernels of packed weights for avx512 with VBMI, VBMI2, VNNI and AMX; CMakeLists.txt gives this file its feature
// flags.
#define SIFT_ISA avx512_amx
#include "simd/packed/amx.h"
#include "simd/packed/wide_kernels.h"

namespace sift::cpu::SIFT_ISA {

const PackedRowKernels* packed_row_kernels() {
  static constexpr PackedRowKernels kTable = [] {
    PackedRowKernels table = kWideKernels;
    table.operands = &amx_operands;
    table.multiply = &multiply_amx;
    table.list_below = &amx_list_below;
    table.most_rows = &amx_most_rows;
    return table;
  }();
  return &kTable;
}

}  // namespace sift::cpu::SIFT_ISA
