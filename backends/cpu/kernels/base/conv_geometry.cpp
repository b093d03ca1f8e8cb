#include "base/conv_geometry.h"

namespace sift::cpu {
namespace {

std::int64_t output_extent(std::int64_t in, std::int64_t pads, std::int64_t kernel, std::int64_t dilation,
                           std::int64_t stride) {
  const std::int64_t span = in + pads - (kernel - 1) * dilation - 1;
  return span < 0 ? 0 : span / stride + 1;
}

std::int64_t ceiled_extent(std::int64_t in, std::int64_t pad_begin, std::int64_t pad_end, std::int64_t kernel,
                           std::int64_t dilation, std::int64_t stride) {
  const std::int64_t span = in + pad_begin + pad_end - (kernel - 1) * dilation - 1;
  if (span <= -stride) return 0;
  const std::int64_t extent = (span + stride - 1) / stride + 1;
  return (extent - 1) * stride >= in + pad_begin ? extent - 1 : extent;
}

}  // namespace

std::int64_t ConvGeometry::output_h(std::int64_t h) const {
  return output_extent(h, pad_top + pad_bottom, kernel_h, dilation_h, stride_h);
}

std::int64_t ConvGeometry::output_w(std::int64_t w) const {
  return output_extent(w, pad_left + pad_right, kernel_w, dilation_w, stride_w);
}

std::int64_t ConvGeometry::ceiled_h(std::int64_t h) const {
  return ceiled_extent(h, pad_top, pad_bottom, kernel_h, dilation_h, stride_h);
}

std::int64_t ConvGeometry::ceiled_w(std::int64_t w) const {
  return ceiled_extent(w, pad_left, pad_right, kernel_w, dilation_w, stride_w);
}

bool ConvGeometry::is_pointwise() const {
  return kernel_h == 1 && kernel_w == 1 && stride_h == 1 && stride_w == 1 && pad_top == 0 && pad_left == 0 &&
         pad_bottom == 0 && pad_right == 0;
}

}  // namespace sift::cpu
