// Kernel, stride, dilation, padding and groups of a convolution or of a window.
#pragma once

#include <cstdint>

namespace sift::cpu {

struct ConvGeometry {
  std::int64_t kernel_h = 1;
  std::int64_t kernel_w = 1;
  std::int64_t stride_h = 1;
  std::int64_t stride_w = 1;
  std::int64_t dilation_h = 1;
  std::int64_t dilation_w = 1;
  std::int64_t pad_top = 0;  // pixels of zeros; negative: pixels of the input that are left out
  std::int64_t pad_left = 0;
  std::int64_t pad_bottom = 0;
  std::int64_t pad_right = 0;
  std::int64_t groups = 1;

  std::int64_t output_h(std::int64_t h) const;
  std::int64_t output_w(std::int64_t w) const;
  // Of pooling with ceil_mode: the last window may hang over the end, but must begin inside the input or its left pad.
  std::int64_t ceiled_h(std::int64_t h) const;
  std::int64_t ceiled_w(std::int64_t w) const;
  // A 1x1 convolution without stride or padding does not see rows: its image is one row of h * w pixels.
  bool is_pointwise() const;
};

}  // namespace sift::cpu
