#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "conv/conv.h"
#include "suites.h"
#include "train/channel_sums.h"
#include "train/trainable_conv.h"
#include "train/weight_gradient/weight_gradient.h"

namespace sift::cpu {
namespace {

constexpr double kClose = 1e-4;

double inner_product(Tensor& a, Tensor& b, std::int64_t size) {
  double sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

// A layer with random places of weights, and their values.
struct Layer {
  ConvGeometry geometry;
  Shape shape;
  std::int64_t rows;
  std::int64_t columns;
  std::vector<std::int64_t> indices;
  std::vector<float> values;

  Layer(Random& random, const ConvGeometry& of, std::int64_t group_rows, std::int64_t channels, double density)
      : geometry(of),
        shape{random.between(1, 35), channels * of.groups, random.between(7, 12), random.between(7, 20)},
        rows(group_rows * of.groups),
        columns(channels * of.kernel_h * of.kernel_w) {
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      if (i + 1 == rows * columns || random.chance(density)) {
        indices.push_back(i);
        values.push_back(random.value());
      }
    }
  }

  std::int64_t nnz() const { return static_cast<std::int64_t>(indices.size()); }
};

// The output is linear in the input and in the weights, so both gradients have its inner product with dy:
// <conv(x), dy> = <x, dx> = <weights, dvalues>.
void test_product(const Layer& layer, Random& random, ThreadPool& pool, const KernelTable& kernels,
                  const std::string& isa) {
  TrainableConv conv(layer.rows, layer.columns, layer.indices, {}, layer.geometry, kernels);
  const WeightGradient gradient(layer.rows, layer.columns, layer.indices, {}, layer.geometry, kernels);
  const Shape out = conv.output_shape(layer.shape);
  const std::int64_t size = element_count(out, Layout::nchw_n16);
  const std::int64_t in_size = element_count(layer.shape, Layout::nchw_n16);
  Tensor x = random_lanes(random, layer.shape);
  Tensor dy = random_lanes(random, out);
  Tensor y(size);
  Tensor dx(in_size);
  const std::vector<float> zeros(layer.values.size(), 0.0F);
  conv.update(zeros);
  conv.forward(pool, layer.shape, x.data(), nullptr, y.data());
  conv.input_gradient(pool, layer.shape, dy.data(), dx.data());
  conv.update(layer.values);
  conv.forward(pool, layer.shape, x.data(), nullptr, y.data());
  conv.input_gradient(pool, layer.shape, dy.data(), dx.data());

  Tensor expected(size);
  ConvOptions options;
  options.geometry = layer.geometry;
  options.layout = Layout::nchw_n16;
  const Conv fixed(std::make_shared<const SparseWeights>(
                       SparseWeights::from_indices(layer.rows, layer.columns, layer.indices, layer.values)),
                   {}, options, kernels);
  fixed.run(pool, layer.shape, x.data(), nullptr, expected.data());
  for (std::int64_t i = 0; i < size; ++i) check(std::abs(y[i] - expected[i]) < kClose, "trainable convolution, " + isa);

  Tensor dvalues(layer.nnz());
  gradient.run(pool, layer.shape, x.data(), dy.data(), dvalues.data(), false);
  double of_weights = 0;
  for (std::int64_t i = 0; i < layer.nnz(); ++i) {
    of_weights += double{layer.values[static_cast<std::size_t>(i)]} * double{dvalues[i]};
  }
  const double of_output = inner_product(y, dy, size);
  const double close = kClose * (1 + std::sqrt(static_cast<double>(size)));
  check(std::abs(inner_product(x, dx, in_size) - of_output) < close, "input gradient, " + isa);
  check(std::abs(of_weights - of_output) < close, "weight gradient, " + isa);

  Tensor twice(layer.nnz());
  std::copy_n(dvalues.data(), layer.nnz(), twice.data());
  gradient.run(pool, layer.shape, x.data(), dy.data(), twice.data(), true);
  for (std::int64_t i = 0; i < layer.nnz(); ++i) check(twice[i] == 2 * dvalues[i], "weight gradients add up, " + isa);

  Tensor sums(out.c);
  channel_sums(pool, out, dy.data(), sums.data(), kernels);
  const double all = std::accumulate(sums.data(), sums.data() + out.c, 0.0);
  check(std::abs(all - std::accumulate(dy.data(), dy.data() + size, 0.0)) < close, "channel sums, " + isa);
}

}  // namespace

void test_gradients(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  for (int i = 0; i < 12; ++i) {
    ConvGeometry geometry = i % 3 == 0 ? ConvGeometry{} : random_geometry(random);
    if (i % 3 == 1) geometry.dilation_h = geometry.dilation_w = 1;
    const Layer layer(random, geometry, random.between(1, 30), random.between(1, 12), i % 2 == 0 ? 0.1 : 0.6);
    const Shape out{layer.shape.n, layer.rows, geometry.output_h(layer.shape.h), geometry.output_w(layer.shape.w)};
    if (out.h > 0 && out.w > 0) test_product(layer, random, pool, kernels, isa);
  }
}

// Layers of several models may share a pool, and a model may compute gradients in several threads: each packs when a
// shape first comes.
void test_concurrent_gradients(const KernelTable& kernels) {
  Random random(9);
  ThreadPool pool(3);
  const ConvGeometry geometry{.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_top = 1, .pad_left = 1};
  const Layer layer(random, geometry, 20, 8, 0.3);
  TrainableConv conv(layer.rows, layer.columns, layer.indices, {}, geometry, kernels);
  conv.update(layer.values);
  const WeightGradient gradient(layer.rows, layer.columns, layer.indices, {}, geometry, kernels);
  const std::int64_t in_size = element_count(layer.shape, Layout::nchw_n16);
  const Shape out = conv.output_shape(layer.shape);
  Tensor x = random_lanes(random, layer.shape);
  Tensor dy = random_lanes(random, out);
  std::vector<std::vector<float>> results(3);
  std::vector<std::thread> callers;
  for (std::vector<float>& result : results) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 3; ++repeat) {
        Tensor y(element_count(out, Layout::nchw_n16));
        Tensor dx(in_size);
        Tensor dvalues(layer.nnz());
        conv.forward(pool, layer.shape, x.data(), nullptr, y.data());
        conv.input_gradient(pool, layer.shape, dy.data(), dx.data());
        gradient.run(pool, layer.shape, x.data(), dy.data(), dvalues.data(), false);
        result.assign(dx.data(), dx.data() + in_size);
        result.insert(result.end(), dvalues.data(), dvalues.data() + layer.nnz());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  check(results[0] == results[1] && results[0] == results[2], "concurrent gradients are the same bits");
}

}  // namespace sift::cpu
