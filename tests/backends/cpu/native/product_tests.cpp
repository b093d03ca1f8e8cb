#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "ops/reorder.h"
#include "products/dense_product.h"
#include "products/matmul.h"
#include "products/recurrent.h"
#include "suites.h"

namespace sift::cpu {
namespace {

// y = in weights^T, up to `most`.
void check_product(const std::vector<float>& weights, const Shape& shape, Tensor& in, Tensor& y, double most,
                   const std::string& what) {
  const std::int64_t columns = shape.c;
  const std::int64_t rows = static_cast<std::int64_t>(weights.size()) / columns;
  for (std::int64_t m = 0; m < shape.n; ++m) {
    for (std::int64_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (std::int64_t c = 0; c < columns; ++c) {
        sum += double{weights[static_cast<std::size_t>(row * columns + c)]} * in[m * columns + c];
      }
      check(std::abs(sum - y[m * rows + row]) < most, what);
    }
  }
}

void test_matmul(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const std::int64_t rows = random.between(1, 60);
  const std::int64_t columns = random.between(1, 200);
  const Shape shape{random.between(1, 40), columns, 1, 1};
  std::vector<float> weights(static_cast<std::size_t>(rows * columns));
  for (float& weight : weights) weight = random.chance(0.2) ? random.value() : 0.0F;
  Tensor in = random_tensor(random, shape.n * columns);
  const Matmul matmul(SparseWeights::from_dense(rows, columns, weights), {}, {}, kernels);
  Tensor y = run(matmul, pool, kernels, shape, in, nullptr);
  check_product(weights, shape, in, y, 1e-4, "matmul, " + isa);
}

// Weights of eight bits, perhaps with scales of groups of columns, as bits, in windows of columns, or as lists that are
// made of them.
void test_packed_rows(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const std::int64_t rows = random.between(1, 60);
  const std::int64_t columns = random.between(1, 1200);
  const Shape shape{random.between(1, 20), columns, 1, 1};
  std::vector<float> weights(static_cast<std::size_t>(rows * columns));
  const double density = random.chance(0.5) ? 0.06 : 0.5;
  for (float& weight : weights) {
    weight = random.chance(density) ? static_cast<float>(random.between(-3, 3)) : 0.0F;
  }
  Tensor in = random_tensor(random, shape.n * columns);
  const std::int64_t group = random.chance(0.5) ? 16 * random.between(1, 5) : 0;
  const std::int64_t groups = group != 0 && group < columns ? (columns + group - 1) / group : 1;
  PackedScales scales{std::vector<float>(static_cast<std::size_t>(rows * groups), 1.0F), group};
  const auto packed = std::make_shared<const PackedRows>(
      PackedRows::pack(SparseWeights::from_dense(rows, columns, weights), ValueType::int8, std::move(scales),
                       {.most_window_bytes = random.chance(0.5) ? 1.5 : 0.0}));
  const Matmul matmul(packed, {}, {.activation = {}, .extension = static_cast<Extension>(random.between(0, 2))},
                      kernels);
  Tensor y = run(matmul, pool, kernels, shape, in, nullptr);
  check_product(weights, shape, in, y, 1e-3, "packed rows, " + isa);
}

void test_dense_product(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const std::int64_t rows = random.between(1, 70);
  const std::int64_t columns = random.between(200, 400);
  const Shape shape{random.between(1, 150), columns, 1, 1};
  std::vector<float> weights(static_cast<std::size_t>(rows * columns));
  for (float& weight : weights) weight = random.value();
  Tensor in = random_tensor(random, shape.n * columns);
  const DenseProduct product(SparseWeights::from_dense(rows, columns, weights), {}, {}, kernels);
  Tensor y = run(product, pool, kernels, shape, in, nullptr);
  check_product(weights, shape, in, y, 1e-3, "dense product, " + isa);
}

// Runs an operator on tensors in NCHW whose second operand has a shape of its own; of the result's size, it lies there.
Tensor run_from(const Op& op, ThreadPool& pool, const KernelTable& kernels, const Shape& shape, Tensor& in,
                const Shape& second_shape, Tensor& second, const float* mask) {
  const Layout layout = op.input_layout();
  const Shape out_shape = op.output_shape(shape);
  const auto inside = [&](const Shape& of, Tensor& from) {
    Tensor to(element_count(of, layout));
    if (layout == Layout::nchw) {
      std::copy_n(from.data(), element_count(of, layout), to.data());
    } else {
      Reorder(Layout::nchw, kernels).run(pool, of, from.data(), nullptr, to.data());
    }
    return to;
  };
  Tensor operand = inside(shape, in);
  Tensor other = inside(second_shape, second);
  const bool shares = element_count(second_shape, layout) == element_count(out_shape, layout);
  Tensor apart(shares ? 0 : element_count(out_shape, layout));
  Tensor& result = shares ? other : apart;
  op.run(pool, shape, operand.data(), {other.data(), nullptr, mask}, result.data());
  if (layout == Layout::nchw) return std::move(result);
  Tensor out(element_count(out_shape, Layout::nchw));
  Reorder(Layout::nchw_n16, kernels).run(pool, out_shape, result.data(), nullptr, out.data());
  return out;
}

// A layer of one gate, whose states are easily walked; the other cells differ behind the products alone.
void test_recurrent(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const std::int64_t hidden = random.between(1, 70);
  const std::int64_t batch = random.chance(0.3) ? 16 * random.between(1, 2) : random.between(1, 20);
  const std::int64_t steps = random.between(1, 5);
  std::vector<float> weights(static_cast<std::size_t>(2 * hidden * hidden));
  for (float& weight : weights) weight = random.chance(0.2) ? random.value() / 2 : 0.0F;
  RecurrentOptions options;
  options.cell = RecurrentCell::tanh;
  options.reversed = {false, true};
  options.has_lengths = random.chance(0.5);
  options.batch = batch;
  const auto packed = std::make_shared<const SparseWeights>(SparseWeights::from_dense(2 * hidden, hidden, weights));
  const Recurrent recurrent(packed, {}, options, kernels);
  const Shape shape{steps * batch, 2 * hidden, 1, 1};
  Tensor in = random_tensor(random, shape.n * shape.c);
  // Of one step, as large as the result; they may lie in its place.
  Tensor first = random_tensor(random, 2 * batch * hidden);
  std::vector<float> lengths(static_cast<std::size_t>(batch), static_cast<float>(steps));
  if (options.has_lengths) {
    for (float& length : lengths) length = static_cast<float>(random.between(0, steps));
  }
  const float* const mask = options.has_lengths ? lengths.data() : nullptr;
  Tensor y = run_from(recurrent, pool, kernels, shape, in, {2 * batch, hidden, 1, 1}, first, mask);
  const std::int64_t channels = recurrent.output_shape(shape).c;
  for (std::int64_t direction = 0; direction < 2; ++direction) {
    const float* const own = first.data() + direction * batch * hidden;
    std::vector<double> h(own, own + batch * hidden);
    for (std::int64_t row = 0; row < batch; ++row) {
      if (lengths[static_cast<std::size_t>(row)] == 0) std::fill_n(h.begin() + row * hidden, hidden, 0.0);
    }
    for (std::int64_t i = 0; i < steps; ++i) {
      const std::int64_t step = (direction == 1 ? steps - 1 - i : i) * batch;
      const std::vector<double> before = h;
      for (std::int64_t row = 0; row < batch; ++row) {
        const bool runs = static_cast<float>(step / batch) < lengths[static_cast<std::size_t>(row)];
        for (std::int64_t unit = 0; unit < hidden; ++unit) {
          const std::int64_t at = (step + row) * channels + direction * hidden + unit;
          double& state = h[static_cast<std::size_t>(row * hidden + unit)];
          if (!runs) {
            check(y[at] == 0 && std::abs(state - y[at + 2 * hidden]) < 1e-5, "recurrent, ended, " + isa);
            continue;
          }
          double sum = in[(step + row) * 2 * hidden + direction * hidden + unit];
          for (std::int64_t c = 0; c < hidden; ++c) {
            const std::int64_t weight = (direction * hidden + unit) * hidden + c;
            sum +=
                double{weights[static_cast<std::size_t>(weight)]} * before[static_cast<std::size_t>(row * hidden + c)];
          }
          state = std::tanh(sum);
          check(std::abs(state - y[at]) < 1e-5, "recurrent, " + isa);
        }
      }
    }
  }
}

}  // namespace

void test_products(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  for (int i = 0; i < 9; ++i) {
    test_matmul(random, pool, kernels, isa);
    test_packed_rows(random, pool, kernels, isa);
    test_dense_product(random, pool, kernels, isa);
    test_recurrent(random, pool, kernels, isa);
  }
}

}  // namespace sift::cpu
