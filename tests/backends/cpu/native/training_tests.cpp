#include <cmath>

#include "suites.h"
#include "train/activation.h"
#include "train/batch_norm.h"
#include "train/batch_norm_pool.h"
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

// With statistics that change nothing, it is pooling alone.
void test_normalized_pooling(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const ConvGeometry g{.kernel_h = 3, .kernel_w = 2, .stride_h = 2, .stride_w = 1, .pad_top = 1, .pad_left = 1};
  const Shape shape{random.between(1, 33), random.between(1, 3), random.between(4, 20), random.between(4, 20)};
  const Shape out_shape = pooled_shape(g, shape);
  const std::int64_t in_floats = element_count(shape, Layout::nchw_n16);
  const std::int64_t out_floats = element_count(out_shape, Layout::nchw_n16);
  Tensor x = random_tensor(random, in_floats);
  Tensor dy = random_lanes(random, out_shape);
  Tensor mean(shape.c);
  Tensor inverse_std(shape.c);
  for (std::int64_t c = 0; c < shape.c; ++c) {
    mean[c] = 0;
    inverse_std[c] = 1;
  }
  Tensor out(out_floats);
  Tensor chosen(out_floats);
  Tensor taps(out_floats / 4);
  Tensor dx(in_floats);
  Tensor dweight(shape.c);
  Tensor dbias(shape.c);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(taps.data());
  batch_norm_pool_forward(pool, g, shape,
                          {.x = x.data(),
                           .weight = nullptr,
                           .bias = nullptr,
                           .relu = false,
                           .out = out.data(),
                           .chosen = chosen.data(),
                           .taps = bytes},
                          nullptr, {.mean = mean.data(), .inverse_std = inverse_std.data(), .variance = nullptr},
                          kernels);
  batch_norm_pool_backward(pool, g, shape,
                           {.dy = dy.data(),
                            .x = x.data(),
                            .chosen = chosen.data(),
                            .taps = bytes,
                            .weight = nullptr,
                            .bias = nullptr,
                            .mean = mean.data(),
                            .inverse_std = inverse_std.data(),
                            .relu = false,
                            .of_batch = false,
                            .dx = dx.data(),
                            .dweight = dweight.data(),
                            .dbias = dbias.data()},
                           kernels);
  const double wanted = sum_of(dy, out_floats);
  check(std::abs(sum_of(dx, in_floats) - wanted) < 1e-2, "gradient of normalization and pooling, " + isa);
  check(std::abs(sum_of(dbias, shape.c) - wanted) < 1e-2, "gradient of a bias before pooling, " + isa);
  for (std::int64_t i = 0; i < out_floats; ++i) check(out[i] == chosen[i], "maxima of normalized values, " + isa);
}

void test_activations(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const std::int64_t floats = 16 * random.between(1, 5000);
  Tensor x = random_tensor(random, floats);
  Tensor out(floats);
  Tensor dx(floats);
  activation_forward(pool, floats, {.kind = LaneActivationKind::gelu}, x.data(), out.data(), kernels);
  activation_backward(pool, floats, {.kind = LaneActivationKind::relu}, out.data(), x.data(), dx.data(), kernels);
  for (std::int64_t i = 0; i < floats; ++i) {
    const double value = static_cast<double>(x[i]);
    const double wanted = value * std::erfc(-value / std::sqrt(2.0)) / 2;
    check(std::abs(static_cast<double>(out[i]) - wanted) < 1e-6, "GELU, " + isa);
    check(dx[i] == (x[i] > 0 ? out[i] : 0.0F), "gradient of a ReLU, " + isa);
  }
}

}  // namespace

void test_training(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  for (int i = 0; i < 12; ++i) {
    test_pooling(random, pool, kernels, isa);
    test_normalizations(random, pool, kernels, isa);
    test_normalized_pooling(random, pool, kernels, isa);
    test_activations(random, pool, kernels, isa);
  }
}

}  // namespace sift::cpu
