// The recurrent kernels for portable; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA portable
#include "simd/recurrent/cell.h"
