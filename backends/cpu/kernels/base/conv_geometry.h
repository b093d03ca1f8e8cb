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
  std::int64_t pad_top = 0;  // pixels of zeros; if negative, pixels of the input that are skipped
  std::int64_t pad_left = 0;
  std::int64_t pad_bottom = 0;
  std::int64_t pad_right = 0;
  std::int64_t groups = 1;

  std::int64_t output_h(std::int64_t h) const;
  std::int64_t output_w(std::int64_t w) const;
  // With ceil_mode of pooling, the last window may extend beyond the end, but must begin inside the input or its left
  // pad.
  std::int64_t ceiled_h(std::int64_t h) const;
  std::int64_t ceiled_w(std::int64_t w) const;
  // Whether rows do not matter: a 1x1 convolution without stride or padding sees an image as one row of h * w pixels.
  bool is_pointwise() const;
};

}  // namespace sift::cpu
