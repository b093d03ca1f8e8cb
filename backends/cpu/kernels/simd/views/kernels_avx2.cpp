// The kernels for views for avx2; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA avx2
#include "simd/views/kernels.h"
