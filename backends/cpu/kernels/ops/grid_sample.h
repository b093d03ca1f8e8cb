// Samples images at positions that are computed: bilinear interpolation, or the nearest pixel.
#pragma once

#include <cstdint>

#include "base/op.h"

namespace sift::cpu {

struct GridSampleOptions {
  std::int64_t height = 0;  // of the result
  std::int64_t width = 0;
  bool is_nearest = false;      // of two pixels at one distance the even one
  bool clamps = false;          // what lies outside is the nearest pixel of the border; otherwise it is zero
  bool aligns_corners = false;  // whether -1 and 1 are the centres of the first and last pixels, or their outer edges
};

// out[n][c][i][j] is the pixel of in[n][c] at (x, y) = second[n][i][j], each from -1 to 1; both tensors are in planes,
// the second one (n, height, width, 2). A position that is NaN gives NaN where it is interpolated, and else a pixel.
class GridSample final : public Op {
 public:
  // Throws std::invalid_argument if a size is negative.
  explicit GridSample(GridSampleOptions options);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return Layout::nchw; }
  OtherSizes other_sizes(const Shape& in) const override;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  GridSampleOptions options_;
};

}  // namespace sift::cpu
