#include <cmath>

#include "suites.h"
#include "train/batch_norm.h"
#include "train/layer_norm.h"
#include "train/max_pool.h"

namespace sift::cpu {
namespace {

double sum_of(Tensor& tensor, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(tensor[i]);
  return sum;
}

// Values are compared with numpy elsewhere; here sums must be right, and all places inside the tensors.
void test_pooling(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  ConvGeometry g = random_geometry(random);
  g.groups = 1;
  const TrainablePool layer(g);
  const Shape shape{random.between(1, 33), random.between(1, 3), random.between(4, 20), random.between(4, 20)};
  const Shape out_shape = layer.output_shape(shape);
  const std::int64_t in_floats = element_count(shape, Layout::nchw_n16);
  const std::int64_t out_floats = element_count(out_shape, Layout::nchw_n16);
  Tensor x = random_tensor(random, in_floats);
  Tensor out(out_floats);
  Tensor taps(out_floats / 4);
  Tensor dy = random_lanes(random, out_shape);
  Tensor dx(in_floats);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(taps.data());
  layer.forward(pool, shape, x.data(), out.data(), bytes, kernels);
  layer.backward(pool, shape, dy.data(), bytes, dx.data(), kernels);
  double expected = 0;
  for (std::int64_t i = 0; i < out_floats; ++i) {
    check(bytes[i] == kNoTap ? std::isinf(out[i]) : bytes[i] < g.kernel_h * g.kernel_w, "taps of a maximum, " + isa);
    if (bytes[i] != kNoTap) expected += static_cast<double>(dy[i]);
  }
  check(std::abs(sum_of(dx, in_floats) - expected) < 1e-3, "gradient of max pooling, " + isa);
}

void test_normalizations(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const Shape shape{random.between(2, 300), random.between(2, 70), 1, 1};
  const std::int64_t floats = element_count(shape, Layout::nchw_n16);
  const std::int64_t lanes = ceil_div(shape.n, kLanes) * kLanes;
  Tensor x = random_tensor(random, floats);
  Tensor dy = random_lanes(random, shape);
  Tensor weight = random_tensor(random, shape.c);
  Tensor out(floats);
  Tensor dx(floats);
  Tensor dweight(shape.c);
  Tensor dbias(shape.c);
  const double dy_sum = sum_of(dy, floats);
  {
    Tensor mean(lanes);
    Tensor inverse_std(lanes);
    layer_norm_forward(pool, shape,
                       {.x = x.data(),
                        .weight = weight.data(),
                        .bias = nullptr,
                        .epsilon = 1e-2F,
                        .out = out.data(),
                        .mean = mean.data(),
                        .inverse_std = inverse_std.data()},
                       kernels);
    layer_norm_backward(pool, shape,
                        {.dy = dy.data(),
                         .x = x.data(),
                         .weight = weight.data(),
                         .mean = mean.data(),
                         .inverse_std = inverse_std.data(),
                         .dx = dx.data(),
                         .dweight = dweight.data(),
                         .dbias = dbias.data()},
                        kernels);
    // What is added to all channels of a token alike changes nothing.
    check(std::abs(sum_of(dx, floats)) < 1e-2, "gradient of layer normalization, " + isa);
    check(std::abs(sum_of(dbias, shape.c) - dy_sum) < 1e-2, "gradient of a bias, " + isa);
  }
  Tensor mean(shape.c);
  Tensor inverse_std(shape.c);
  batch_norm_forward(
      pool, shape,
      {.x = x.data(), .weight = weight.data(), .bias = nullptr, .residual = nullptr, .relu = false, .out = out.data()},
      1e-2F, {.mean = mean.data(), .inverse_std = inverse_std.data(), .variance = nullptr}, kernels);
  batch_norm_backward(pool, shape,
                      {.dy = dy.data(),
                       .x = x.data(),
                       .out = nullptr,
                       .weight = weight.data(),
                       .bias = nullptr,
                       .mean = mean.data(),
                       .inverse_std = inverse_std.data(),
                       .relu = false,
                       .of_batch = true,
                       .dx = dx.data(),
                       .dweight = dweight.data(),
                       .dbias = dbias.data(),
                       .dresidual = nullptr},
                      kernels);
  check(std::abs(sum_of(dx, floats)) < 1e-2, "gradient of batch normalization, " + isa);
  check(std::abs(sum_of(dbias, shape.c) - dy_sum) < 1e-2, "gradient of a bias, " + isa);
}

}  // namespace

void test_training(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  for (int i = 0; i < 12; ++i) {
    test_pooling(random, pool, kernels, isa);
    test_normalizations(random, pool, kernels, isa);
  }
}

}  // namespace sift::cpu
