// Kernels of packed weights for avx512 with VBMI, VBMI2 and VNNI; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA avx512_vbmi2
#include "simd/packed/wide_kernels.h"

namespace sift::cpu::SIFT_ISA {

const PackedRowKernels* packed_row_kernels() { return &kWideKernels; }

}  // namespace sift::cpu::SIFT_ISA
