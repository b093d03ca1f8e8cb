// The kernels for views for avx512; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA avx512
#include "simd/views/kernels.h"
