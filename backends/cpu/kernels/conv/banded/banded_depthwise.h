// A depthwise layer and the pointwise layers before and after it, in bands of rows: an inverted bottleneck, or a
// depthwise separable convolution. What lies between the layers of a band stays in the second-level cache. Layer by
// layer, tensors that are several times as large as input and output would be written to memory and read again.
#pragma once

#include <cstdint>
#include <memory>

#include "base/op.h"
#include "conv/conv.h"
#include "ops/windows/window_op.h"

namespace sift::cpu {

class BandedDepthwise final : public Op {
 public:
  // One of `before` and `after` may be null. All layers have images in planes, and these two run pixels by themselves
  // (Conv::runs_pixels). `rows` of outputs are a band; if 0, as many as leave room for the rest in the second-level
  // cache. Throws std::invalid_argument for other layers, or if `rows` is negative.
  BandedDepthwise(std::shared_ptr<const Conv> before, std::shared_ptr<const Depthwise> depthwise,
                  std::shared_ptr<const Conv> after, std::int64_t rows = 0);

  // Rows of outputs of a band; the last band of an image may have fewer.
  std::int64_t band_rows(const Shape& in, int threads) const;
  // Whether bands take less time than one layer after the other, for inputs of this shape on this many threads: what
  // lies between the layers would leave the cache, bands have enough pixels for each weight, all threads have work, and
  // few rows are computed for two bands.
  bool pays(const Shape& in, int threads) const;

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return Layout::nchw; }
  // The layer after the depthwise one adds the second operand.
  OtherSizes other_sizes(const Shape& in) const override;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  // An image of each tensor.
  struct Images {
    Shape in;
    Shape expanded;  // what the depthwise layer reads
    Shape filtered;  // what it writes
    Shape out;
  };
  // Of a band.
  struct Pixels {
    std::int64_t expanded;
    std::int64_t filtered;
  };

  Images images_of(const Shape& in) const;
  // At most, for one thread. Layers choose their tiles for it, so that sums have the same order for any number of
  // threads, of which more than one may have shorter bands.
  Pixels longest_band(const Shape& in, const Images& images) const;
  void run_band(const Images& images, const Pixels& most, const RowRange& rows, const float* in, const float* residual,
                float* out) const;

  std::shared_ptr<const Conv> before_;
  std::shared_ptr<const Depthwise> depthwise_;
  std::shared_ptr<const Conv> after_;
  std::int64_t rows_;
};

}  // namespace sift::cpu
