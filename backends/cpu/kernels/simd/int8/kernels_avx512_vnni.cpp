// The int8 kernels for avx512_vnni; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA int8_avx512_vnni
#include "simd/int8/kernels.h"
