// Every n-th pixel of NCHW planes: a strided 1x1 convolution equals a plain one on the pixels that it reads.
#pragma once

#include "base/op.h"

namespace sift::cpu {

// out[n][c][y][x] = in[n][c][y * stride_h][x * stride_w], for the `h` and `w` of `out_shape`.
void subsample(ThreadPool& pool, const Shape& in_shape, const Shape& out_shape, std::int64_t stride_h,
               std::int64_t stride_w, const float* in, float* out);

}  // namespace sift::cpu
