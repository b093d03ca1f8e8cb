// The int8 kernels for neon_mull; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA int8_neon_mull
#define SIFT_NEON
#include "simd/int8/kernels.h"
