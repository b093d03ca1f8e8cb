#include "ops/view_arithmetic.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// Floats that are worked on at a time: the buffers stay in the first-level cache.
constexpr std::int64_t kPieceFloats = 2048;

std::optional<UnaryFunction> function_of(ViewArithmeticKind kind) {
  switch (kind) {
    case ViewArithmeticKind::square_root: return UnaryFunction::square_root;
    case ViewArithmeticKind::reciprocal: return UnaryFunction::reciprocal;
    case ViewArithmeticKind::exponential: return UnaryFunction::exponential;
    case ViewArithmeticKind::softplus: return UnaryFunction::softplus;
    case ViewArithmeticKind::logarithm: return UnaryFunction::logarithm;
    case ViewArithmeticKind::sine: return UnaryFunction::sine;
    case ViewArithmeticKind::cosine: return UnaryFunction::cosine;
    default: return std::nullopt;
  }
}

std::optional<BinaryFunction> binary_of(ViewArithmeticKind kind) {
  switch (kind) {
    case ViewArithmeticKind::divide: return BinaryFunction::divide;
    case ViewArithmeticKind::maximum: return BinaryFunction::maximum;
    case ViewArithmeticKind::minimum: return BinaryFunction::minimum;
    case ViewArithmeticKind::power: return BinaryFunction::power;
    case ViewArithmeticKind::less: return BinaryFunction::less;
    case ViewArithmeticKind::less_or_equal: return BinaryFunction::less_or_equal;
    case ViewArithmeticKind::greater: return BinaryFunction::greater;
    case ViewArithmeticKind::greater_or_equal: return BinaryFunction::greater_or_equal;
    case ViewArithmeticKind::equal: return BinaryFunction::equal;
    case ViewArithmeticKind::where_true: return BinaryFunction::where_true;
    case ViewArithmeticKind::where_false: return BinaryFunction::where_false;
    default: return std::nullopt;
  }
}

struct Buffers {
  alignas(64) std::array<float, kPieceFloats> left;
  alignas(64) std::array<float, kPieceFloats> right;
  alignas(64) std::array<float, kPieceFloats> out;
};

Buffers& buffers() {
  static thread_local Buffers own;
  return own;
}

// Calls use(offset, number, run) for runs of the last axis: where the first value lies, its number in the piece, and
// how many there are.
template <typename Use>
void for_each_run(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides, std::int64_t begin,
                  std::int64_t count, Use use) {
  const std::size_t axes = sizes.size();
  if (axes == 0) return use(std::int64_t{0}, std::int64_t{0}, count);
  std::array<std::int64_t, kMostViewAxes> at{};
  std::int64_t rest = begin;
  for (std::size_t axis = axes; axis-- > 0; rest /= sizes[axis]) at[axis] = rest % sizes[axis];
  std::int64_t offset = offset_of(begin, sizes, strides);
  for (std::int64_t number = 0; number < count;) {
    const std::int64_t run = std::min(count - number, sizes[axes - 1] - at[axes - 1]);
    use(offset, number, run);
    number += run;
    at[axes - 1] += run;
    offset += run * strides[axes - 1];
    for (std::size_t axis = axes - 1; axis > 0 && at[axis] == sizes[axis]; --axis) {
      at[axis] = 0;
      offset += strides[axis - 1] - sizes[axis] * strides[axis];
      ++at[axis - 1];
    }
  }
}

// Between `count` values `stride` apart and as many that are adjacent; each of `unit` floats.
void gather(const float* from, std::int64_t stride, std::int64_t count, std::int64_t unit, float* to) {
  if (stride == 1) {
    std::copy_n(from, count * unit, to);
  } else if (unit == 1 && stride == 0) {
    std::fill_n(to, count, *from);
  } else {
    for (std::int64_t i = 0; i < count; ++i) std::copy_n(from + i * stride * unit, unit, to + i * unit);
  }
}

void scatter(const float* from, std::int64_t stride, std::int64_t count, std::int64_t unit, float* to) {
  if (stride == 1) {
    std::copy_n(from, count * unit, to);
  } else {
    for (std::int64_t i = 0; i < count; ++i) std::copy_n(from + i * unit, unit, to + i * stride * unit);
  }
}

}  // namespace

ViewArithmetic::ViewArithmetic(ViewArithmeticOptions options, const KernelTable& kernels)
    : options_(std::move(options)), kernels_(kernels), view_kernels_(view_kernels_of(kernels)) {
  const ViewArithmeticOptions& o = options_;
  const bool takes_one = o.kind == ViewArithmeticKind::first || function_of(o.kind);
  if (takes_one == o.right.has_value()) {
    throw std::invalid_argument("view arithmetic: a second operand is missing, or there is one too many");
  }
  if (o.kind != ViewArithmeticKind::first && (o.scale != 1 || o.shift != 0)) {
    throw std::invalid_argument("view arithmetic: only one operand alone is scaled and shifted");
  }
  if (o.kind != ViewArithmeticKind::where_true && o.kind != ViewArithmeticKind::where_false && o.fill != 0) {
    throw std::invalid_argument("view arithmetic: only a selection is filled");
  }
  check_view("view arithmetic", o.left, o.sizes, o.layout);
  if (o.right) check_view("view arithmetic", *o.right, o.sizes, o.layout);
  if (o.out) check_view("view arithmetic", *o.out, o.sizes, o.layout);
  const auto fits = [&](const std::optional<TensorView>& view) { return !view || view->shape.n == o.left.shape.n; };
  if (o.layout == Layout::nchw_n16 && !(fits(o.right) && fits(o.out))) {
    throw std::invalid_argument("view arithmetic: all tensors must have as many images");
  }
  count_ = value_count(o.sizes);
  left_in_order_ = is_in_order(o.left);
  right_in_order_ = o.right && is_in_order(*o.right);
  output_shape(o.left.shape);
}

bool ViewArithmetic::is_in_order(const TensorView& view) const {
  std::int64_t stride = 1;
  for (std::size_t axis = options_.sizes.size(); axis-- > 0; stride *= options_.sizes[axis]) {
    if (options_.sizes[axis] > 1 && view.strides[axis] != stride) return false;
  }
  return true;
}

Shape ViewArithmetic::output_shape(const Shape& in) const {
  if (in != options_.left.shape) throw std::invalid_argument("view arithmetic: it is for an input of another shape");
  const Shape out =
      options_.out ? options_.out->shape : Shape{options_.layout == Layout::nchw_n16 ? in.n : 1, count_, 1, 1};
  element_count(out, options_.layout);
  return out;
}

OtherSizes ViewArithmetic::other_sizes(const Shape&) const {
  return {.second = options_.right ? element_count(options_.right->shape, options_.layout) : OtherSizes::kNotTaken};
}

void ViewArithmetic::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others,
                         float* out) const {
  const Shape made = output_shape(shape);
  const ViewArithmeticOptions& o = options_;
  if (o.right && others.second == nullptr) {
    throw std::invalid_argument("view arithmetic: the second operand is missing");
  }
  const std::int64_t unit = value_floats(o.layout);
  const std::int64_t size = kPieceFloats / unit;
  const std::int64_t pieces = ceil_div(count_, size);
  // Pieces that are worth a thread.
  constexpr std::int64_t kTogether = 4;
  const std::int64_t all = pieces * group_count(o.left.shape, o.layout);
  pool.parallel_for(ceil_div(all, kTogether), [&](std::int64_t task) {
    Buffers& own = buffers();
    for (std::int64_t i = task * kTogether; i < std::min(all, (task + 1) * kTogether); ++i) {
      const std::int64_t begin = i % pieces * size;
      const Piece piece{i / pieces, begin, std::min(size, count_ - begin)};
      float* const to = out + piece.group * group_floats(made, o.layout);
      float* const values = o.out ? own.out.data() : to + begin * unit;
      const float* const left = values_of(o.left, left_in_order_, in, piece, own.left.data());
      const float* const right =
          o.right ? values_of(*o.right, right_in_order_, others.second, piece, own.right.data()) : nullptr;
      combine(left, right, piece.count * unit, values);
      clear_idle_lanes(piece, values);
      if (!o.out) continue;
      const std::vector<std::int64_t>& strides = o.out->strides;
      for_each_run(o.sizes, strides, begin, piece.count,
                   [&](std::int64_t offset, std::int64_t number, std::int64_t run) {
                     scatter(values + number * unit, strides.empty() ? 1 : strides.back(), run, unit,
                             to + (o.out->first + offset) * unit);
                   });
    }
  });
}

// Values of a piece, one after the other: where they lie, or copied to `buffer`.
const float* ViewArithmetic::values_of(const TensorView& view, bool in_order, const float* tensor, const Piece& piece,
                                       float* buffer) const {
  const std::int64_t unit = value_floats(options_.layout);
  const float* const first = tensor + piece.group * group_floats(view.shape, options_.layout) + view.first * unit;
  if (in_order) return first + piece.begin * unit;
  for_each_run(options_.sizes, view.strides, piece.begin, piece.count,
               [&](std::int64_t offset, std::int64_t number, std::int64_t run) {
                 gather(first + offset * unit, view.strides.back(), run, unit, buffer + number * unit);
               });
  return buffer;
}

void ViewArithmetic::combine(const float* left, const float* right, std::int64_t count, float* out) const {
  ElementwiseArgs args{.kind = BinaryKind::first,
                       .a = left,
                       .b = right,
                       .repeats_b = false,
                       .scale = options_.scale,
                       .shift = options_.shift,
                       .out = out,
                       .count = count,
                       .activation = options_.activation};
  switch (options_.kind) {
    case ViewArithmeticKind::first: break;
    case ViewArithmeticKind::add: args.kind = BinaryKind::add; break;
    case ViewArithmeticKind::subtract: args.kind = BinaryKind::subtract; break;
    case ViewArithmeticKind::multiply: args.kind = BinaryKind::multiply; break;
    default:
      if (const auto function = function_of(options_.kind)) {
        view_kernels_.function_of(*function, left, out, count);
      } else {
        view_kernels_.binary({.kind = *binary_of(options_.kind),
                              .a = left,
                              .b = right,
                              .fill = options_.fill,
                              .out = out,
                              .count = count});
      }
      if (options_.activation.kind == ActivationKind::none) return;
      args.a = out;
      args.b = nullptr;
  }
  kernels_.elementwise(args);
}

// Lanes past the last image hold finite values, which functions of them need not be.
void ViewArithmetic::clear_idle_lanes(const Piece& piece, float* values) const {
  const std::int64_t images = options_.left.shape.n - piece.group * kLanes;
  const bool is_finite = !binary_of(options_.kind) && !function_of(options_.kind);
  if (options_.layout != Layout::nchw_n16 || is_finite || images >= kLanes) return;
  for (std::int64_t i = 0; i < piece.count; ++i) {
    std::fill(values + i * kLanes + images, values + (i + 1) * kLanes, 0.0F);
  }
}

}  // namespace sift::cpu
