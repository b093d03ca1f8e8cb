// The recurrent kernels for avx2; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA avx2
#include "simd/recurrent/cell.h"
