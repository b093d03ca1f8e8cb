#include <cmath>
#include <memory>
#include <vector>

#include "conv/conv.h"
#include "conv/pooled_winograd.h"
#include "conv/winograd.h"
#include "jit/code_memory.h"
#include "ops/windows/window_op.h"
#include "suites.h"

namespace sift::cpu {
namespace {

void test_conv(Random& random, const ConvGeometry& g, ThreadPool& pool, const KernelTable& kernels,
               const std::string& isa) {
  const std::int64_t channels = random.between(1, 30);
  const std::int64_t rows = random.between(1, 70);
  const Shape shape{random.between(1, 18), channels * g.groups, random.between(7, 19), random.between(7, 35)};
  const Shape out{shape.n, rows * g.groups, g.output_h(shape.h), g.output_w(shape.w)};
  const std::int64_t columns = channels * g.kernel_h * g.kernel_w;
  const double densities[]{0, 0.1, 0.3, 0.7, 1};
  const double density = densities[random.between(0, 4)];
  std::vector<float> weights(static_cast<std::size_t>(rows * g.groups * columns));
  for (float& weight : weights) weight = random.chance(density) ? random.value() : 0.0F;
  std::vector<float> bias(static_cast<std::size_t>(rows * g.groups));
  for (float& b : bias) b = random.value();
  Tensor in = random_tensor(random, element_count(shape, Layout::nchw));
  Tensor residual = random_tensor(random, element_count(out, Layout::nchw));

  const auto sparse =
      std::make_shared<const SparseWeights>(SparseWeights::from_dense(rows * g.groups, columns, weights));
  std::vector<double> expected;
  for (std::int64_t n = 0; n < out.n; ++n) {
    for (std::int64_t row = 0; row < out.c; ++row) {
      for (std::int64_t oy = 0; oy < out.h; ++oy) {
        for (std::int64_t ox = 0; ox < out.w; ++ox) {
          double sum = bias[static_cast<std::size_t>(row)] + residual[static_cast<std::int64_t>(expected.size())];
          for (std::int64_t column = 0; column < columns; ++column) {
            const float weight = weights[static_cast<std::size_t>(row * columns + column)];
            const std::int64_t c = row / rows * channels + column / (g.kernel_h * g.kernel_w);
            const std::int64_t iy = oy * g.stride_h + column / g.kernel_w % g.kernel_h * g.dilation_h - g.pad_top;
            const std::int64_t ix = ox * g.stride_w + column % g.kernel_w * g.dilation_w - g.pad_left;
            if (weight == 0 || iy < 0 || iy >= shape.h || ix < 0 || ix >= shape.w) continue;
            sum += double{weight} * in[((n * shape.c + c) * shape.h + iy) * shape.w + ix];
          }
          expected.push_back(std::max(sum, 0.0));
        }
      }
    }
  }
  for (const Layout layout : {Layout::nchw, Layout::nchw_n16}) {
    for (const WeightForm form : {WeightForm::csr, WeightForm::csr_pairs, WeightForm::dense, WeightForm::code}) {
      if (form == WeightForm::code && !(kernels.runs_generated && may_execute_code())) continue;
      const ConvOptions options{g, {ActivationKind::clip, 0, std::numeric_limits<float>::infinity()}, layout, form};
      const Conv conv(sparse, bias, options, kernels);
      Tensor y = run(conv, pool, kernels, shape, in, &residual);
      double worst = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double error = std::abs(expected[i] - y[static_cast<std::int64_t>(i)]);
        worst = error <= worst ? worst : error;  // NaN counts
      }
      check(worst < 1e-4, "conv, " + isa + ", error " + std::to_string(worst));
    }
  }
}

// Of random weights, the given share of which is not zero: both layouts must agree.
void test_layouts(Random& random, const Shape& shape, std::int64_t rows, double density, ConvOptions options,
                  ThreadPool& pool, const KernelTable& kernels, const std::string& what) {
  const std::int64_t columns = shape.c * options.geometry.kernel_h * options.geometry.kernel_w;
  std::vector<float> weights(static_cast<std::size_t>(rows * columns));
  for (float& weight : weights) weight = random.chance(density) ? random.value() : 0.0F;
  const auto sparse = std::make_shared<const SparseWeights>(SparseWeights::from_dense(rows, columns, weights));
  Tensor in = random_tensor(random, element_count(shape, Layout::nchw));
  options.layout = Layout::nchw;
  const Conv nchw(sparse, {}, options, kernels);
  options.layout = Layout::nchw_n16;
  const Conv nchw_n16(sparse, {}, options, kernels);
  Tensor a = run(nchw, pool, kernels, shape, in, nullptr);
  Tensor b = run(nchw_n16, pool, kernels, shape, in, nullptr);
  const std::int64_t count = element_count(nchw.output_shape(shape), Layout::nchw);
  for (std::int64_t i = 0; i < count; ++i) check(std::abs(a[i] - b[i]) < 1e-4F, what);
}

// Taken in parts.
void test_large_kernel(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  ConvOptions options;
  options.geometry.kernel_h = options.geometry.kernel_w = 36;
  options.geometry.pad_top = options.geometry.pad_left = 30;
  test_layouts(random, {2, 1, 9, 9}, 2, 0.1, options, pool, kernels, "large kernel, " + isa);
}

// More than a cache holds, so that input is prefetched in runs.
void test_runs_of_input(Random& random, std::int64_t kernel, std::int64_t stride, ThreadPool& pool,
                        const KernelTable& kernels, const std::string& isa) {
  ConvOptions options;
  options.form = WeightForm::csr;
  options.microarchitecture = Microarchitecture::intel;
  ConvGeometry& g = options.geometry;
  g.kernel_h = g.kernel_w = kernel;
  g.stride_h = g.stride_w = stride;
  g.pad_top = g.pad_left = kernel / 2;
  test_layouts(random, {16, 48, 28, 31}, 9, 0.05, options, pool, kernels, "runs of input, " + isa);
}

// Beside the same convolution by sums of products.
void test_winograd(Random& random, std::int64_t kernel, std::int64_t stride, std::int64_t channels, ThreadPool& pool,
                   const KernelTable& kernels, const std::string& isa) {
  ConvGeometry g;
  g.kernel_h = g.kernel_w = kernel;
  g.stride_h = g.stride_w = stride;
  g.pad_top = random.between(0, 3);
  g.pad_left = random.between(0, 3);
  g.pad_bottom = random.between(0, 3);
  g.pad_right = random.between(0, 3);
  const std::int64_t rows = random.between(1, 20);
  const Shape shape{random.between(1, 18), channels, random.between(7, 29), random.between(7, 29)};
  std::vector<float> weights(static_cast<std::size_t>(rows * channels * kernel * kernel));
  for (float& weight : weights) weight = random.value();
  std::vector<float> bias(static_cast<std::size_t>(rows));
  for (float& b : bias) b = random.value();
  const auto packed =
      std::make_shared<const SparseWeights>(SparseWeights::from_dense(rows, channels * kernel * kernel, weights));
  Tensor in = random_tensor(random, element_count(shape, Layout::nchw));
  const Activation relu{ActivationKind::clip, 0, std::numeric_limits<float>::infinity()};
  for (const Layout layout : {Layout::nchw, Layout::nchw_n16}) {
    const Conv conv(packed, bias, {g, relu, layout, WeightForm::dense}, kernels);
    const Winograd winograd(*packed, bias, g, relu, layout, kernels);
    Tensor residual = random_tensor(random, element_count(conv.output_shape(shape), Layout::nchw));
    Tensor expected = run(conv, pool, kernels, shape, in, &residual);
    Tensor y = run(winograd, pool, kernels, shape, in, &residual);
    double worst = 0;
    for (std::int64_t i = 0; i < element_count(conv.output_shape(shape), Layout::nchw); ++i) {
      const double error = std::abs(double{y[i]} - expected[i]);
      worst = error <= worst ? worst : error;
    }
    check(worst < 1e-4, "winograd, " + isa + ", error " + std::to_string(worst));

    ConvGeometry window;
    window.kernel_h = random.between(1, 5);
    window.kernel_w = random.between(1, 5);
    window.stride_h = random.between(1, 3);
    window.stride_w = random.between(1, 3);
    window.pad_top = window.kernel_h / 2;
    window.pad_left = window.kernel_w / 2;
    const bool ceil_mode = random.chance(0.5);
    const MaxPool pooling(window, ceil_mode, layout, kernels);
    const PooledWinograd together(*packed, bias, g, relu, window, ceil_mode, layout, kernels);
    const std::int64_t count = element_count(together.output_shape(shape), Layout::nchw);
    if (count == 0) continue;
    Tensor convolved = run(winograd, pool, kernels, shape, in, nullptr);
    Tensor after = run(pooling, pool, kernels, winograd.output_shape(shape), convolved, nullptr);
    Tensor at_once = run(together, pool, kernels, shape, in, nullptr);
    for (std::int64_t i = 0; i < count; ++i) check(at_once[i] == after[i], "pooled winograd, " + isa);
  }
}

}  // namespace

void test_convolutions(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  for (int i = 0; i < 9; ++i) test_conv(random, random_geometry(random), pool, kernels, isa);
  ConvGeometry usual;
  usual.kernel_h = usual.kernel_w = 3;
  usual.pad_top = usual.pad_left = usual.pad_bottom = usual.pad_right = 1;
  ConvGeometry strided_1x1;
  strided_1x1.stride_h = strided_1x1.stride_w = 2;
  for (int i = 0; i < 2; ++i) {
    test_conv(random, usual, pool, kernels, isa);
    test_conv(random, strided_1x1, pool, kernels, isa);
  }
  test_winograd(random, 7, 2, 3, pool, kernels, isa);
  test_winograd(random, 3, 1, 4, pool, kernels, isa);
  test_large_kernel(random, pool, kernels, isa);
  for (const std::int64_t kernel : {1, 3}) {
    for (const std::int64_t stride : {1, 2}) test_runs_of_input(random, kernel, stride, pool, kernels, isa);
  }
}

}  // namespace sift::cpu
