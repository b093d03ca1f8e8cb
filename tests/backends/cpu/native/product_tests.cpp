#include <cmath>
#include <memory>
#include <vector>

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

// A layer of one gate, whose states are easily walked; the other cells differ behind the products alone.
void test_recurrent(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const std::int64_t hidden = random.between(1, 40);
  const std::int64_t batch = random.chance(0.3) ? 16 * random.between(1, 2) : random.between(1, 20);
  const std::int64_t steps = random.between(1, 5);
  std::vector<float> weights(static_cast<std::size_t>(2 * hidden * hidden));
  for (float& weight : weights) weight = random.chance(0.2) ? random.value() / 2 : 0.0F;
  RecurrentOptions options;
  options.cell = RecurrentCell::tanh;
  options.reversed = {false, true};
  options.batch = batch;
  const auto packed = std::make_shared<const SparseWeights>(SparseWeights::from_dense(2 * hidden, hidden, weights));
  const Recurrent recurrent(packed, {}, options, kernels);
  const Shape shape{steps * batch, 2 * hidden, 1, 1};
  Tensor in = random_tensor(random, shape.n * shape.c);
  Tensor y = run(recurrent, pool, kernels, shape, in, nullptr);
  for (std::int64_t direction = 0; direction < 2; ++direction) {
    std::vector<double> h(static_cast<std::size_t>(batch * hidden));
    for (std::int64_t i = 0; i < steps; ++i) {
      const std::int64_t first = (direction == 1 ? steps - 1 - i : i) * batch;
      const std::vector<double> before = h;
      for (std::int64_t row = 0; row < batch; ++row) {
        for (std::int64_t unit = 0; unit < hidden; ++unit) {
          const std::int64_t at = (first + row) * 2 * hidden + direction * hidden + unit;
          double sum = in[at];
          for (std::int64_t c = 0; c < hidden; ++c) {
            const std::int64_t weight = (direction * hidden + unit) * hidden + c;
            sum +=
                double{weights[static_cast<std::size_t>(weight)]} * before[static_cast<std::size_t>(row * hidden + c)];
          }
          h[static_cast<std::size_t>(row * hidden + unit)] = std::tanh(sum);
          check(std::abs(std::tanh(sum) - y[at]) < 1e-5, "recurrent, " + isa);
        }
      }
    }
  }
}

}  // namespace

void test_products(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  for (int i = 0; i < 9; ++i) {
    test_matmul(random, pool, kernels, isa);
    test_dense_product(random, pool, kernels, isa);
    test_recurrent(random, pool, kernels, isa);
  }
}

}  // namespace sift::cpu
