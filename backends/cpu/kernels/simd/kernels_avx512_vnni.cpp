// Kernels of packed weights for avx512 with VNNI, without VBMI2; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA avx512_vnni
#include "simd/packed/wide_kernels.h"

namespace sift::cpu::SIFT_ISA {

const PackedRowKernels* packed_row_kernels() { return &kWideKernels; }

}  // namespace sift::cpu::SIFT_ISA
