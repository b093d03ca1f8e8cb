// The gradient of a bias: sums of a tensor in NCHWn16 over images and pixels.
#pragma once

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// sums: [channels]
void channel_sums(ThreadPool& pool, const Shape& shape, const float* x, float* sums, const KernelTable& kernels);

}  // namespace sift::cpu
