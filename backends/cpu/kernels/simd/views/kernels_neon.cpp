// The kernels for views for neon; CMakeLists.txt gives this file its feature flags.
#define SIFT_ISA neon
#include "simd/views/kernels.h"
