#include <cmath>
#include <memory>
#include <vector>

#include "products/dense_product.h"
#include "products/matmul.h"
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

}  // namespace

void test_products(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  for (int i = 0; i < 9; ++i) {
    test_matmul(random, pool, kernels, isa);
    test_dense_product(random, pool, kernels, isa);
  }
}

}  // namespace sift::cpu
