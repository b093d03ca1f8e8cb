// ScatterElements, and ScatterND of whole rows.
#pragma once

#include <optional>

#include "base/op.h"

namespace sift::cpu {

// What is made of a value and those that come to its place.
enum class Scattering : std::uint8_t { replaced, sum, product, maximum, minimum };

struct Scattered {
  Scattering kind = Scattering::replaced;
  bool has_index_for_all = false;  // pixels of an image
  std::optional<float> fill;       // what the result begins as, instead of the third operand
  std::optional<float> first;      // and what a place has instead before the first value comes to it
};

// out[n][indices[n][i][pixel]][pixel] takes in[n][i][pixel], one i after the other, for `count` channels of the result.
// The indices are the second operand, integers [n][c][h][w], or [n][c][1][1] if all pixels of an image have the same
// ones. Negative ones are counted from the end.
class ScatterElements final : public Op {
 public:
  // Throws std::invalid_argument if `count` is negative.
  ScatterElements(std::int64_t count, const Scattered& scattered);

  Shape output_shape(const Shape& in) const override { return {in.n, count_, in.h, in.w}; }
  Layout input_layout() const override { return Layout::nchw; }
  OtherSizes other_sizes(const Shape& in) const override;
  // Throws std::invalid_argument for an index that is none of a channel.
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  std::int64_t count_;
  Scattered scattered_;
};

}  // namespace sift::cpu
