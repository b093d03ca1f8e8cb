// Kernels of packed weights for avx512 with VNNI, without VBMI2; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA avx512_vnni
#include "simd/packed/list.h"
#include "simd/packed/wide.h"

namespace sift::cpu::SIFT_ISA {

const PackedRowKernels* packed_row_kernels();
const PackedRowKernels* packed_row_kernels() {
  static constexpr PackedRowKernels kTable{&wide_operands, &multiply_wide, &list_packed, &wide_list_below};
  return &kTable;
}

}  // namespace sift::cpu::SIFT_ISA
