// Arithmetic on values where they lie, whatever the order of their axes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/activation.h"
#include "base/op.h"
#include "ops/tensor_view.h"
#include "simd/kernel_table.h"
#include "simd/views/kernel_table.h"

namespace sift::cpu {

enum class ViewArithmeticKind : std::uint8_t {
  first,
  add,
  subtract,
  multiply,
  divide,
  maximum,
  minimum,
  power,
  less,  // 1 where it holds, and 0
  less_or_equal,
  greater,
  greater_or_equal,
  equal,
  where_true,  // the left one where the right one is not zero, and `fill` elsewhere
  where_false,
  // Of one operand.
  square_root,
  reciprocal,
  exponential,
  softplus,
  logarithm,
  sine,
  cosine
};

struct ViewArithmeticOptions {
  ViewArithmeticKind kind = ViewArithmeticKind::first;
  float scale = 1;  // of `first`: activation(scale left + shift)
  float shift = 0;
  float fill = 0;  // of `where_true` and `where_false`
  Activation activation;
  std::vector<std::int64_t> sizes;
  TensorView left;
  std::optional<TensorView> right;  // none for `first` and the functions of one operand
  std::optional<TensorView> out;    // where the result lies in a larger tensor; none: it is all of one, in order
  Layout layout = Layout::nchw;
};

// activation(left op right), or activation(function(left)), an array of `sizes`. Input and second operand are the
// tensors of left and right, which may be one. The result is one image of as many channels as it has values, or what
// `out` says; in NCHWn16 it is one of each image, since the lanes hold images. The output may not be the second
// operand, as other operators' may.
class ViewArithmetic final : public Op {
 public:
  // Throws std::invalid_argument for views that leave their tensors, a second operand that is missing or superfluous,
  // and tensors of different numbers of images in NCHWn16.
  ViewArithmetic(ViewArithmeticOptions options, const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return options_.layout; }
  OtherSizes other_sizes(const Shape& in) const override;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  // Values [begin, begin + count) of a group.
  struct Piece {
    std::int64_t group;
    std::int64_t begin;
    std::int64_t count;
  };

  bool is_in_order(const TensorView& view) const;
  const float* values_of(const TensorView& view, bool in_order, const float* tensor, const Piece& piece,
                         float* buffer) const;
  void combine(const float* left, const float* right, std::int64_t count, float* out) const;
  void clear_idle_lanes(const Piece& piece, float* values) const;

  ViewArithmeticOptions options_;
  std::int64_t count_;  // values of a group
  bool left_in_order_;
  bool right_in_order_;
  const KernelTable& kernels_;
  const ViewKernels& view_kernels_;
};

}  // namespace sift::cpu
