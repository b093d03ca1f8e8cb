// The recurrent kernels for avx512; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA avx512
#include "simd/recurrent/cell.h"
#include "simd/recurrent/lookup.h"
