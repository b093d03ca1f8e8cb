// Activations in training and their gradients, elementwise, for tensors in NCHWn16.
#pragma once

#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// out = f(x) for `floats` elements, a multiple of 16; out may be x.
void activation_forward(ThreadPool& pool, std::int64_t floats, const LaneActivation& function, const float* x,
                        float* out, const KernelTable& kernels);

// dx = dy f'(x); dx may be dy or x. Where dy is zero and x finite, dx is zero.
void activation_backward(ThreadPool& pool, std::int64_t floats, const LaneActivation& function, const float* dy,
                         const float* x, float* dx, const KernelTable& kernels);

}  // namespace sift::cpu
