// Products, quotients and softmax of values where they lie, and places of extreme values, in both layouts.
#include <cmath>
#include <utility>
#include <vector>

#include "ops/selection/arg_extreme.h"
#include "ops/selection/gather_elements.h"
#include "ops/selection/integers.h"
#include "ops/selection/top_k.h"
#include "ops/softmax.h"
#include "ops/view_arithmetic.h"
#include "products/batched_matmul.h"
#include "suites.h"

namespace sift::cpu {
namespace {

// A tensor of images, and matrices in it: [batch][rows][columns], with either of the last two axes adjacent.
struct Matrices {
  Matrices(Random& random, Layout layout, std::int64_t batch, std::int64_t rows, std::int64_t columns)
      : layout(layout),
        is_turned(random.chance(0.5)),
        view{.shape = {layout == Layout::nchw_n16 ? 18 : 1, batch * rows * columns},
             .first = 0,
             .strides = {rows * columns, is_turned ? 1 : columns, is_turned ? rows : 1}},
        values(layout == Layout::nchw_n16 ? random_lanes(random, view.shape)
                                          : random_tensor(random, element_count(view.shape, layout))) {}

  double at(std::int64_t image, std::int64_t matrix, std::int64_t row, std::int64_t column) {
    const std::int64_t place = matrix * view.strides[0] + row * view.strides[1] + column * view.strides[2];
    return double{values[in_lanes(layout, view.shape, image, place)]};
  }

  static std::int64_t in_lanes(Layout layout, const Shape& shape, std::int64_t image, std::int64_t place) {
    return layout == Layout::nchw ? place : (image / kLanes * shape.c + place) * kLanes + image % kLanes;
  }

  Layout layout;
  bool is_turned;
  TensorView view;
  Tensor values;
};

void test_batched_matmul(Random& random, ThreadPool& pool, const KernelTable& kernels, Layout layout,
                         const std::string& isa) {
  const std::int64_t batch = random.between(1, 3);
  const std::int64_t rows = random.between(1, 40);
  const std::int64_t columns = random.between(1, 80);
  const std::int64_t depth = random.between(1, 200);
  Matrices left(random, layout, batch, rows, depth);
  Matrices right(random, layout, batch, columns, depth);
  const BatchedMatmul op({.batch = {batch},
                          .rows = rows,
                          .columns = columns,
                          .depth = depth,
                          .scale = 2,
                          .left = left.view,
                          .right = right.view,
                          .layout = layout},
                         kernels);
  const Shape made = op.output_shape(left.view.shape);
  Tensor out(element_count(made, layout));
  op.run(pool, left.view.shape, left.values.data(), right.values.data(), out.data());
  for (int sample = 0; sample < 200; ++sample) {
    const std::int64_t image = random.between(0, made.n - 1);
    const std::int64_t matrix = random.between(0, batch - 1);
    const std::int64_t row = random.between(0, rows - 1);
    const std::int64_t column = random.between(0, columns - 1);
    double sum = 0;
    for (std::int64_t k = 0; k < depth; ++k) sum += left.at(image, matrix, row, k) * right.at(image, matrix, column, k);
    const std::int64_t place = (matrix * rows + row) * columns + column;
    const double found = out[Matrices::in_lanes(layout, made, image, place)];
    check(std::abs(found - 2 * sum) < 1e-4 * static_cast<double>(depth), "batched matmul, " + isa);
  }
}

void test_quotient(Random& random, ThreadPool& pool, const KernelTable& kernels, Layout layout,
                   const std::string& isa) {
  const std::int64_t rows = random.between(1, 60);
  const std::int64_t columns = random.between(1, 60);
  Matrices left(random, layout, 1, rows, columns);
  Matrices right(random, layout, 1, rows, 1);
  TensorView divisor = right.view;
  divisor.strides[2] = 0;
  const ViewArithmetic op({.kind = ViewArithmeticKind::divide,
                           .activation = {},
                           .sizes = {1, rows, columns},
                           .left = left.view,
                           .right = divisor,
                           .out = std::nullopt,
                           .layout = layout},
                          kernels);
  const Shape made = op.output_shape(left.view.shape);
  Tensor out(element_count(made, layout));
  op.run(pool, left.view.shape, left.values.data(), right.values.data(), out.data());
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const double wanted = left.at(made.n - 1, 0, i / columns, i % columns) / right.at(made.n - 1, 0, i / columns, 0);
    const double found = out[Matrices::in_lanes(layout, made, made.n - 1, i)];
    check(std::abs(found - wanted) <= 1e-6 * std::abs(wanted), "quotient of views, " + isa);
  }
}

void test_softmax(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const Shape shape{random.between(1, 20), random.between(1, 70), random.between(1, 2), random.between(1, 9)};
  Tensor in = random_tensor(random, element_count(shape, Layout::nchw));
  const bool is_log = random.chance(0.5);
  Tensor a = run(Softmax(is_log, Layout::nchw, kernels), pool, kernels, shape, in, nullptr);
  Tensor b = run(Softmax(is_log, Layout::nchw_n16, kernels), pool, kernels, shape, in, nullptr);
  for (std::int64_t i = 0; i < element_count(shape, Layout::nchw); ++i) {
    check(std::abs(a[i] - b[i]) < 1e-5F && (is_log ? a[i] <= 0 : a[i] >= 0 && a[i] <= 1), "softmax, " + isa);
  }
}

// Places of values in either layout, and what is at these places.
void test_selection(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const Shape shape{random.between(1, 20), random.between(3, 70), random.between(1, 2), random.between(1, 40)};
  Tensor planes = random_tensor(random, element_count(shape, Layout::nchw));
  const std::int64_t pixels = shape.h * shape.w;
  Tensor lanes = random_lanes(random, shape);
  for (std::int64_t i = 0; i < element_count(shape, Layout::nchw); ++i) {
    planes[i] = static_cast<float>(random.between(-4, 4));  // many are equal
    const std::int64_t image = i / (shape.c * pixels);
    lanes[(image / kLanes * shape.c * pixels + i % (shape.c * pixels)) * kLanes + image % kLanes] = planes[i];
  }
  const bool is_least = random.chance(0.5);
  const std::int64_t k = random.between(1, 3);
  Tensor first(2 * shape.n * pixels);
  Tensor same(2 * shape.n * pixels);
  Tensor ranked(2 * shape.n * k * pixels);
  Tensor values(shape.n * k * pixels);
  ArgExtreme(is_least, false, Layout::nchw, kernels).run(pool, shape, planes.data(), {}, first.data());
  ArgExtreme(is_least, false, Layout::nchw_n16, kernels).run(pool, shape, lanes.data(), {}, same.data());
  TopK(k, is_least, kernels).run(pool, shape, planes.data(), {}, ranked.data());
  GatherElements(k, false).run(pool, shape, planes.data(), ranked.data(), values.data());
  for (std::int64_t i = 0; i < shape.n * pixels; ++i) {
    const std::int64_t image = i / pixels;
    const std::int64_t place = load_integer(first.data(), i);
    const std::int64_t best = image * k * pixels + i % pixels;
    check(place == load_integer(same.data(), i), "extremes in both layouts, " + isa);
    check(place == load_integer(ranked.data(), best), "the first of k is the extreme, " + isa);
    check(values[best] == planes[(image * shape.c + place) * pixels + i % pixels], "values by places, " + isa);
    for (std::int64_t rank = 1; rank < k; ++rank) {
      const float before = values[best + (rank - 1) * pixels];
      const float own = values[best + rank * pixels];
      check(is_least ? before <= own : before >= own, "k values in order, " + isa);
    }
  }
}

}  // namespace

void test_views(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  for (int round = 0; round < 10; ++round) {
    for (const Layout layout : {Layout::nchw, Layout::nchw_n16}) {
      test_batched_matmul(random, pool, kernels, layout, isa);
      test_quotient(random, pool, kernels, layout, isa);
    }
    test_softmax(random, pool, kernels, isa);
    test_selection(random, pool, kernels, isa);
  }
}

}  // namespace sift::cpu
