// The kernels for views for portable; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA portable
#include "simd/views/kernels.h"
