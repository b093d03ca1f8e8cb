// The int8 kernels for portable; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA int8_portable
#include "simd/int8/kernels.h"
