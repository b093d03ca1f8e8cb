// The int8 kernels for avx2_madd; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA int8_avx2_madd
#include "simd/int8/kernels.h"
