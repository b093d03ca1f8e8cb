// The recurrent kernels for neon; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA neon
#include "simd/recurrent/cell.h"
