// The kernels and the thread pool without Python, to be built with a sanitizer: random convolutions, products and
// windows in every instruction set of the machine, in tensors of exactly their size, so that a lane too far is seen.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/isa.h"
#include "base/thread_pool.h"
#include "conv/conv.h"
#include "conv/pooled_winograd.h"
#include "conv/winograd.h"
#include "jit/assembler.h"
#include "jit/code_memory.h"
#include "jit/generated_rows.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/global_pool.h"
#include "ops/normalize.h"
#include "ops/reorder.h"
#include "ops/window_op.h"
#include "products/dense_product.h"
#include "products/matmul.h"

namespace sift::cpu {
namespace {

int failures = 0;

void check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  ++failures;
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  float value() { return std::uniform_real_distribution<float>(-1, 1)(engine_); }
  bool chance(double probability) { return std::uniform_real_distribution<double>(0, 1)(engine_) < probability; }

 private:
  std::mt19937 engine_;
};

// Exactly as large as the tensor: the sanitizer guards what lies behind it.
class Tensor {
 public:
  explicit Tensor(std::int64_t size)
      : memory_(static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>((size + 15) / 16 * 64)))),
        size_(size) {
    std::fill(data(), data() + size, std::numeric_limits<float>::quiet_NaN());
  }
  float* data() { return memory_.get() + (size_ + 15) / 16 * 16 - size_; }  // ends where the memory ends
  float& operator[](std::int64_t i) { return data()[i]; }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Free> memory_;
  std::int64_t size_;
};

Tensor random_tensor(Random& random, std::int64_t size) {
  Tensor tensor(size);
  for (std::int64_t i = 0; i < size; ++i) tensor[i] = random.value();
  return tensor;
}

// Runs an operator in its layout on planes.
Tensor run(const Op& op, ThreadPool& pool, const KernelTable& kernels, const Shape& shape, Tensor& in, Tensor* second) {
  const Shape out_shape = op.output_shape(shape);
  Tensor out(element_count(out_shape, Layout::planes));
  if (op.input_layout() == Layout::planes) {
    op.run(pool, shape, in.data(), second == nullptr ? nullptr : second->data(), out.data());
    return out;
  }
  const Reorder to(Layout::planes, kernels);
  Tensor blocks(element_count(shape, Layout::images16));
  to.run(pool, shape, in.data(), nullptr, blocks.data());
  Tensor other(second == nullptr ? 0 : element_count(out_shape, Layout::images16));
  if (second != nullptr) to.run(pool, out_shape, second->data(), nullptr, other.data());
  Tensor result(element_count(out_shape, Layout::images16));
  op.run(pool, shape, blocks.data(), second == nullptr ? nullptr : other.data(), result.data());
  Reorder(Layout::images16, kernels).run(pool, out_shape, result.data(), nullptr, out.data());
  return out;
}

ConvGeometry random_geometry(Random& random) {
  ConvGeometry g;
  g.groups = random.between(1, 2);
  g.kernel_h = random.between(1, 4);
  g.kernel_w = random.between(1, 4);
  g.stride_h = random.between(1, 3);
  g.stride_w = random.between(1, 3);
  g.dilation_h = random.between(1, 2);
  g.dilation_w = random.between(1, 2);
  g.pad_top = random.between(0, 2);
  g.pad_left = random.between(0, 2);
  g.pad_bottom = random.between(0, 2);
  g.pad_right = random.between(0, 2);
  return g;
}

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
  Tensor in = random_tensor(random, element_count(shape, Layout::planes));
  Tensor residual = random_tensor(random, element_count(out, Layout::planes));

  const auto sparse = std::make_shared<const SparseWeights>(
      SparseWeights::from_dense(rows * g.groups, columns, weights));
  for (const Layout layout : {Layout::planes, Layout::images16}) {
    for (const Algorithm algorithm : {Algorithm::single, Algorithm::pair, Algorithm::dense, Algorithm::generated}) {
      if (algorithm == Algorithm::generated && !(kernels.runs_generated && may_execute_code())) continue;
      const ConvOptions options{g, {ActivationKind::clip, 0, std::numeric_limits<float>::infinity()}, layout, algorithm};
      const Conv conv(sparse, bias, options, kernels);
      Tensor y = run(conv, pool, kernels, shape, in, &residual);
      double worst = 0;
      std::int64_t at = 0;
      for (std::int64_t n = 0; n < out.n; ++n) {
        for (std::int64_t row = 0; row < out.c; ++row) {
          for (std::int64_t oy = 0; oy < out.h; ++oy) {
            for (std::int64_t ox = 0; ox < out.w; ++ox, ++at) {
              double sum = bias[static_cast<std::size_t>(row)] + residual[at];
              for (std::int64_t column = 0; column < columns; ++column) {
                const float weight = weights[static_cast<std::size_t>(row * columns + column)];
                const std::int64_t c = row / rows * channels + column / (g.kernel_h * g.kernel_w);
                const std::int64_t iy =
                    oy * g.stride_h + column / g.kernel_w % g.kernel_h * g.dilation_h - g.pad_top;
                const std::int64_t ix = ox * g.stride_w + column % g.kernel_w * g.dilation_w - g.pad_left;
                if (weight == 0 || iy < 0 || iy >= shape.h || ix < 0 || ix >= shape.w) continue;
                sum += double{weight} * in[((n * shape.c + c) * shape.h + iy) * shape.w + ix];
              }
              const double error = std::abs(std::max(sum, 0.0) - y[at]);
              worst = error <= worst ? worst : error;  // NaN counts
            }
          }
        }
      }
      check(worst < 1e-4, "conv, " + isa + ", error " + std::to_string(worst));
    }
  }
}

// Taken in parts; both layouts must agree.
void test_large_kernel(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  ConvOptions options;
  ConvGeometry& g = options.geometry;
  g.kernel_h = g.kernel_w = 36;
  g.pad_top = g.pad_left = 30;
  const Shape shape{2, 1, 9, 9};
  const std::int64_t columns = g.kernel_h * g.kernel_w;
  std::vector<float> weights(static_cast<std::size_t>(2 * columns));
  for (float& weight : weights) weight = random.chance(0.1) ? random.value() : 0.0F;
  const auto sparse = std::make_shared<const SparseWeights>(SparseWeights::from_dense(2, columns, weights));
  Tensor in = random_tensor(random, element_count(shape, Layout::planes));
  options.layout = Layout::planes;
  const Conv planes(sparse, {}, options, kernels);
  options.layout = Layout::images16;
  const Conv images(sparse, {}, options, kernels);
  Tensor a = run(planes, pool, kernels, shape, in, nullptr);
  Tensor b = run(images, pool, kernels, shape, in, nullptr);
  const std::int64_t count = element_count(planes.output_shape(shape), Layout::planes);
  for (std::int64_t i = 0; i < count; ++i) check(std::abs(a[i] - b[i]) < 1e-4F, "large kernel, " + isa);
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
  const auto packed = std::make_shared<const SparseWeights>(
      SparseWeights::from_dense(rows, channels * kernel * kernel, weights));
  Tensor in = random_tensor(random, element_count(shape, Layout::planes));
  const Activation relu{ActivationKind::clip, 0, std::numeric_limits<float>::infinity()};
  for (const Layout layout : {Layout::planes, Layout::images16}) {
    const Conv conv(packed, bias, {g, relu, layout, Algorithm::dense}, kernels);
    const Winograd winograd(*packed, bias, g, relu, layout, kernels);
    Tensor residual = random_tensor(random, element_count(conv.output_shape(shape), Layout::planes));
    Tensor expected = run(conv, pool, kernels, shape, in, &residual);
    Tensor y = run(winograd, pool, kernels, shape, in, &residual);
    double worst = 0;
    for (std::int64_t i = 0; i < element_count(conv.output_shape(shape), Layout::planes); ++i) {
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
    const std::int64_t count = element_count(together.output_shape(shape), Layout::planes);
    if (count == 0) continue;
    Tensor convolved = run(winograd, pool, kernels, shape, in, nullptr);
    Tensor after = run(pooling, pool, kernels, winograd.output_shape(shape), convolved, nullptr);
    Tensor at_once = run(together, pool, kernels, shape, in, nullptr);
    for (std::int64_t i = 0; i < count; ++i) check(at_once[i] == after[i], "pooled winograd, " + isa);
  }
}

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
  const Matmul matmul(std::make_shared<const SparseWeights>(SparseWeights::from_dense(rows, columns, weights)), {}, {},
                      kernels);
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

// Values are compared with numpy elsewhere; here both layouts must agree, and stay inside their tensors.
void test_windows(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  ConvGeometry g;
  g.kernel_h = random.between(1, 4);
  g.kernel_w = random.between(1, 4);
  g.stride_h = random.between(1, 3);
  g.stride_w = random.between(1, 3);
  g.pad_top = g.pad_bottom = g.kernel_h / 2;
  g.pad_left = g.pad_right = g.kernel_w / 2;
  const Shape shape{random.between(1, 18), random.between(1, 3), random.between(4, 20), random.between(4, 40)};
  Tensor in = random_tensor(random, element_count(shape, Layout::planes));
  std::vector<float> values(static_cast<std::size_t>(shape.c * g.kernel_h * g.kernel_w));
  for (float& value : values) value = random.value();
  std::vector<std::uint8_t> mask((values.size() + 7) / 8);
  for (std::uint8_t& byte : mask) byte = static_cast<std::uint8_t>(random.between(0, 255));
  const auto weights = std::make_shared<const SparseWeights>(
      SparseWeights::from_dense(shape.c, g.kernel_h * g.kernel_w, values, false, mask));
  const auto agree = [&](const Op& planes, const Op& images) {
    Tensor a = run(planes, pool, kernels, shape, in, nullptr);
    Tensor b = run(images, pool, kernels, shape, in, nullptr);
    const std::int64_t count = element_count(planes.output_shape(shape), Layout::planes);
    for (std::int64_t i = 0; i < count; ++i) check(std::abs(a[i] - b[i]) < 1e-4F, "window, " + isa);
  };
  const Activation silu{ActivationKind::silu, 0, 0};
  agree(Depthwise(weights, {}, g, silu, Layout::planes, kernels),
        Depthwise(weights, {}, g, silu, Layout::images16, kernels));
  agree(MaxPool(g, true, Layout::planes, kernels), MaxPool(g, true, Layout::images16, kernels));
  agree(AveragePool(g, true, false, Layout::planes, kernels), AveragePool(g, true, false, Layout::images16, kernels));
  agree(GlobalAveragePool(Layout::planes, kernels), GlobalAveragePool(Layout::images16, kernels));
}

// Without pixels, what comes out is made of padding, if there is any. Beside that, nothing may be read or written.
void test_empty(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const Shape shapes[]{{2, 3, 0, 5}, {2, 3, 5, 0}, {2, 3, 0, 0}, {0, 3, 5, 5}, {2, 0, 5, 5}, {0, 0, 0, 0}};
  for (const Shape& shape : shapes) {
    Tensor in(0);
    for (int i = 0; i < 8; ++i) {
      ConvGeometry g = random_geometry(random);
      g.groups = 1;
      for (std::int64_t* pad : {&g.pad_top, &g.pad_left, &g.pad_bottom, &g.pad_right}) *pad = random.between(0, 5);
      if (i % 4 == 0) {
        // The last windows end before the padding does.
        g.kernel_h = g.kernel_w = 1;
        g.stride_h = g.stride_w = 2;
        g.pad_top = g.pad_left = 2;
        g.pad_bottom = g.pad_right = 0;
      }
      const std::int64_t taps = g.kernel_h * g.kernel_w;
      const bool fits = g.output_h(shape.h) > 0 && g.output_w(shape.w) > 0;
      if (!fits) continue;
      const std::vector<float> values(static_cast<std::size_t>(shape.c * taps), 1.0F);
      const auto weights =
          std::make_shared<const SparseWeights>(SparseWeights::from_dense(shape.c, taps, values));
      std::vector<float> bias(static_cast<std::size_t>(shape.c), 2.0F);
      const auto agree = [&](const Op& planes, const Op& images, float expected) {
        Tensor a = run(planes, pool, kernels, shape, in, nullptr);
        Tensor b = run(images, pool, kernels, shape, in, nullptr);
        const std::int64_t count = element_count(planes.output_shape(shape), Layout::planes);
        for (std::int64_t j = 0; j < count; ++j) check(a[j] == expected && b[j] == expected, "empty input, " + isa);
      };
      agree(Depthwise(weights, bias, g, {}, Layout::planes, kernels),
            Depthwise(weights, bias, g, {}, Layout::images16, kernels), 2.0F);
      agree(MaxPool(g, true, Layout::planes, kernels), MaxPool(g, true, Layout::images16, kernels),
            std::numeric_limits<float>::lowest());
      agree(AveragePool(g, true, true, Layout::planes, kernels), AveragePool(g, true, true, Layout::images16, kernels),
            0.0F);
      if (shape.c == 0) continue;
      std::vector<float> rows(static_cast<std::size_t>(16 * shape.c * taps));
      for (float& weight : rows) weight = random.chance(0.5) ? random.value() : 0.0F;
      const auto sparse =
          std::make_shared<const SparseWeights>(SparseWeights::from_dense(16, shape.c * taps, rows));
      const std::vector<float> biases(16, 3.0F);
      ConvOptions in_planes{.geometry = g, .activation = {}, .layout = Layout::planes, .algorithm = std::nullopt};
      ConvOptions in_images = in_planes;
      in_images.layout = Layout::images16;
      agree(Conv(sparse, biases, in_planes, kernels), Conv(sparse, biases, in_images, kernels), 3.0F);
    }
    ConvGeometry first{.kernel_h = 3, .kernel_w = 3, .pad_top = 2, .pad_left = 2, .pad_bottom = 2, .pad_right = 2};
    ConvGeometry window{.kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2};
    if (shape.c > 0) {
      const std::vector<float> ones(static_cast<std::size_t>(16 * shape.c * 9), 1.0F);
      const SparseWeights dense = SparseWeights::from_dense(16, shape.c * 9, ones);
      for (const Layout layout : {Layout::planes, Layout::images16}) {
        run(Winograd(dense, {}, first, {}, layout, kernels), pool, kernels, shape, in, nullptr);
        run(PooledWinograd(dense, {}, first, {}, window, false, layout, kernels), pool, kernels, shape, in, nullptr);
      }
    }
    std::vector<float> channels(static_cast<std::size_t>(shape.c), 1.0F);
    const Shape matrix{shape.n, shape.c};
    Tensor rows = random_tensor(random, shape.n * shape.c);
    for (const Layout layout : {Layout::planes, Layout::images16}) {
      run(GlobalAveragePool(layout, kernels), pool, kernels, shape, in, nullptr);
      run(Elementwise(BinaryKind::add, {}, layout, kernels), pool, kernels, shape, in, &in);
      run(ChannelScale(channels, channels, {}, layout, kernels), pool, kernels, shape, in, nullptr);
      if (shape.c == 0) continue;
      run(LayerNormalization(channels, channels, 1e-3F, layout, kernels), pool, kernels, matrix, rows, nullptr);
    }
  }
  const std::vector<float> ones(std::size_t{70} * 300, 1.0F);
  const auto weights = std::make_shared<const SparseWeights>(SparseWeights::from_dense(70, 300, ones));
  Tensor nothing(0);
  // The convolution has no output, the pooling behind it has: of padding.
  const Shape low{2, 3, 2, 5};
  Tensor few = random_tensor(random, element_count(low, Layout::planes));
  const SparseWeights dense = SparseWeights::from_dense(16, 27, std::span(ones).first(16 * 27));
  const ConvGeometry unpadded{.kernel_h = 3, .kernel_w = 3};
  const ConvGeometry padded{.kernel_h = 2, .kernel_w = 2, .pad_top = 1, .pad_left = 1, .pad_bottom = 1, .pad_right = 1};
  for (const Layout layout : {Layout::planes, Layout::images16}) {
    const PooledWinograd op(dense, {}, unpadded, {}, padded, false, layout, kernels);
    const std::int64_t count = element_count(op.output_shape(low), Layout::planes);
    Tensor y = run(op, pool, kernels, low, few, nullptr);
    check(count > 0, "there is padding to pool");
    for (std::int64_t i = 0; i < count; ++i) {
      check(y[i] == std::numeric_limits<float>::lowest(), "pooled padding, " + isa);
    }
  }
  run(Matmul(weights, {}, {}, kernels), pool, kernels, {0, 300}, nothing, nullptr);
  run(DenseProduct(*weights, {}, {}, kernels), pool, kernels, {0, 300}, nothing, nullptr);
}

void test_normalization(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const Shape shape{random.between(1, 35), random.between(1, 70), 1, 1};
  std::vector<float> scale(static_cast<std::size_t>(shape.c));
  for (float& value : scale) value = random.value();
  Tensor in = random_tensor(random, element_count(shape, Layout::planes));
  Tensor a = run(LayerNormalization(scale, scale, 1e-3F, Layout::planes, kernels), pool, kernels, shape, in, nullptr);
  Tensor b = run(LayerNormalization(scale, scale, 1e-3F, Layout::images16, kernels), pool, kernels, shape, in, nullptr);
  for (std::int64_t i = 0; i < shape.n * shape.c; ++i) check(std::abs(a[i] - b[i]) < 1e-4F, "normalization, " + isa);
}

double score(Tensor& queries, Tensor& keys, std::int64_t query, std::int64_t key, std::int64_t channels,
             std::int64_t depth) {
  double sum = 0;
  for (std::int64_t c = 0; c < depth; ++c) {
    sum += double{queries[query * channels + c]} * double{keys[key * channels + c]};
  }
  return sum;
}

void test_attention(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  AttentionOptions options;
  options.sequences = random.between(1, 3);
  options.tokens = random.between(1, 40);
  options.heads = random.between(1, 3);
  options.depth = random.between(1, 9);
  options.value_depth = options.depth;
  const std::int64_t channels = options.heads * options.depth;
  options.queries = options.keys = options.values = {channels, 0};
  options.mask = MaskShape{options.sequences, 1, random.chance(0.5) ? options.tokens : 1, options.tokens};
  const Shape shape{options.sequences * options.tokens, channels};
  Tensor x[3]{random_tensor(random, shape.n * channels), random_tensor(random, shape.n * channels),
              random_tensor(random, shape.n * channels)};
  Tensor mask = random_tensor(random, options.mask->size());
  const std::int64_t lanes = element_count(shape, Layout::images16);
  Tensor blocks[4]{Tensor(lanes), Tensor(lanes), Tensor(lanes), Tensor(lanes)};
  for (int i = 0; i < 3; ++i) Reorder(Layout::planes, kernels).run(pool, shape, x[i].data(), {}, blocks[i].data());
  Attention(options, kernels)
      .run(pool, shape, blocks[0].data(), {blocks[1].data(), blocks[2].data(), mask.data()}, blocks[3].data());
  Tensor in_lanes(shape.n * channels);
  Reorder(Layout::images16, kernels).run(pool, shape, blocks[3].data(), {}, in_lanes.data());
  options.layout = Layout::planes;
  Tensor in_planes(shape.n * channels);
  Attention(options, kernels).run(pool, shape, x[0].data(), {x[1].data(), x[2].data(), mask.data()}, in_planes.data());

  // One head is compared with plain arithmetic, all of them with each other.
  for (std::int64_t row = 0; row < shape.n; ++row) {
    const std::int64_t sequence = row / options.tokens;
    const std::int64_t mask_row =
        options.mask->queries == 1 ? sequence : sequence * options.tokens + row % options.tokens;
    double sum = 0;
    std::vector<double> expected(static_cast<std::size_t>(options.depth));
    for (std::int64_t token = 0; token < options.tokens; ++token) {
      const std::int64_t key = sequence * options.tokens + token;
      const double weight = std::exp(score(x[0], x[1], row, key, channels, options.depth) +
                                     double{mask[mask_row * options.tokens + token]});
      sum += weight;
      for (std::int64_t c = 0; c < options.depth; ++c) {
        expected[static_cast<std::size_t>(c)] += weight * double{x[2][key * channels + c]};
      }
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      const float value = in_lanes[row * channels + c];
      check(std::abs(value - in_planes[row * channels + c]) < 1e-5F, "attention in two layouts, " + isa);
      if (c < options.depth) {
        check(std::abs(value - expected[static_cast<std::size_t>(c)] / sum) < 1e-4, "attention, " + isa);
      }
    }
  }
}

void test_pool() {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
      pool.parallel_for(count, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
      for (const auto& c : calls) check(c == 1, "every index is called once");
    }
    std::atomic<int> nested{0};
    pool.parallel_for(6, [&](std::int64_t) { pool.parallel_for(5, [&](std::int64_t) { ++nested; }); });
    check(nested == 30, "loops within loops");
    bool thrown = false;
    try {
      pool.parallel_for(9, [](std::int64_t i) {
        if (i == 4) throw std::runtime_error("four");
      });
    } catch (const std::runtime_error&) {
      thrown = true;
    }
    check(thrown, "an exception reaches the caller");
  }
}

// More callers than loops that workers go to.
void test_concurrent_loops() {
  ThreadPool pool(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 11; ++caller) {
    callers.emplace_back([&, caller] {
      for (int repeat = 0; repeat < 60; ++repeat) {
        std::vector<std::atomic<int>> calls(static_cast<std::size_t>(1 + (repeat * 7 + caller) % 50));
        const auto count = static_cast<std::int64_t>(calls.size());
        pool.parallel_for(count, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
        for (const auto& c : calls) wrong += c != 1;
        bool thrown = false;
        try {
          pool.parallel_for(9, [&](std::int64_t i) {
            if (i == caller % 9) throw std::runtime_error("one of nine");
          });
        } catch (const std::runtime_error&) {
          thrown = true;
        }
        wrong += !thrown;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  check(wrong == 0, "loops of several callers at once");
}

// Against what GNU as 2.40 makes of the same instructions.
void test_encodings() {
  std::byte written[128];
  Assembler code(written);
  code.load_aligned(31, {Gpr::rdi, 8128});
  code.load_aligned(28, {Gpr::rdi, 8192});
  code.store_aligned({Gpr::rdx, 64}, 9);
  code.store({Gpr::rdx, 64}, 17);
  code.stream({Gpr::rdx, -64}, 1);
  code.broadcast(30, {Gpr::rdx, -512});
  code.add(20, 20, {Gpr::rsi, 64});
  code.max(13, 28, 13);
  code.min(26, 29, 26);
  code.multiply_add(27, 31, {Gpr::rsi, -512});
  code.multiply_add(12, 3, {Gpr::rsi, 2});
  code.prefetch({Gpr::rdx, 0x12340});
  code.clear_upper();
  code.add(Gpr::rdi, 16384);
  code.subtract(Gpr::rdx, Gpr::rax);
  code.move(Gpr::rcx, Gpr::rdi);
  code.load(Gpr::rdx, {Gpr::rcx, 0x1234});
  code.jump({Gpr::rcx, 0x1234});
  code.ret();
  const int expected[]{
      0x62, 0x61, 0x7c, 0x48, 0x28, 0x7f, 0x7f,                    // vmovaps 0x1fc0(%rdi),%zmm31
      0x62, 0x61, 0x7c, 0x48, 0x28, 0xa7, 0x00, 0x20, 0x00, 0x00,  // vmovaps 0x2000(%rdi),%zmm28
      0x62, 0x71, 0x7c, 0x48, 0x29, 0x4a, 0x01,                    // vmovaps %zmm9,0x40(%rdx)
      0x62, 0xe1, 0x7c, 0x48, 0x11, 0x4a, 0x01,                    // vmovups %zmm17,0x40(%rdx)
      0x62, 0xf1, 0x7c, 0x48, 0x2b, 0x4a, 0xff,                    // vmovntps %zmm1,-0x40(%rdx)
      0x62, 0x62, 0x7d, 0x48, 0x18, 0x72, 0x80,                    // vbroadcastss -0x200(%rdx),%zmm30
      0x62, 0xe1, 0x5c, 0x40, 0x58, 0x66, 0x01,                    // vaddps 0x40(%rsi),%zmm20,%zmm20
      0x62, 0x51, 0x1c, 0x40, 0x5f, 0xed,                          // vmaxps %zmm13,%zmm28,%zmm13
      0x62, 0x01, 0x14, 0x40, 0x5d, 0xd2,                          // vminps %zmm26,%zmm29,%zmm26
      0x62, 0x62, 0x05, 0x50, 0xb8, 0x5e, 0x80,                    // vfmadd231ps -0x200(%rsi){1to16},%zmm31,%zmm27
      0x62, 0x72, 0x65, 0x58, 0xb8, 0xa6, 0x02, 0x00, 0x00, 0x00,  // vfmadd231ps 0x2(%rsi){1to16},%zmm3,%zmm12
      0x0f, 0x18, 0x92, 0x40, 0x23, 0x01, 0x00,                    // prefetcht1 0x12340(%rdx)
      0xc5, 0xf8, 0x77,                                            // vzeroupper
      0x48, 0x81, 0xc7, 0x00, 0x40, 0x00, 0x00,                    // add $0x4000,%rdi
      0x48, 0x29, 0xc2,                                            // sub %rax,%rdx
      0x48, 0x89, 0xf9,                                            // mov %rdi,%rcx
      0x48, 0x8b, 0x91, 0x34, 0x12, 0x00, 0x00,                    // mov 0x1234(%rcx),%rdx
      0xff, 0xa1, 0x34, 0x12, 0x00, 0x00,                          // jmp *0x1234(%rcx)
      0xc3,                                                        // ret
  };
  bool same = code.at() - written == std::ssize(expected);
  for (std::size_t i = 0; same && i < std::size(expected); ++i) same = written[i] == static_cast<std::byte>(expected[i]);
  check(same, "encodings");
}

// A body says what it was written from.
void test_bodies(Random& random) {
  std::vector<CodeEntry> entries;
  std::uint32_t offset = 0;
  for (int column = 0; column < 900; ++column) {
    offset += static_cast<std::uint32_t>(random.chance(0.02) ? random.between(1, 9000) : random.between(1, 3)) * 64;
    for (std::uint32_t row = 0; row < kCodeRows; ++row) {
      if (random.chance(0.1)) entries.push_back({offset, row});
    }
  }
  std::vector<std::byte> written(most_body_bytes(entries.size(), 900) + 60 * kPrefetchBytes);
  const std::byte* const end = write_body(written.data(), entries, 40, 20);
  check(end <= written.data() + written.size(), "bodies have room");
  check(read_body(written.data()) == entries, "bodies are read back");
}

// Several sessions may share a pool and a plan.
void test_concurrent_runs(const KernelTable& kernels) {
  Random random(7);
  ThreadPool pool(3);
  const Shape shape{2, 24, 14, 14};
  std::vector<float> weights(std::size_t{40} * 24 * 9);
  for (float& weight : weights) weight = random.chance(0.1) ? random.value() : 0.0F;
  ConvOptions options;
  options.geometry.kernel_h = options.geometry.kernel_w = 3;
  options.geometry.pad_top = options.geometry.pad_left = options.geometry.pad_bottom = options.geometry.pad_right = 1;
  options.layout = Layout::planes;
  const Conv conv(std::make_shared<const SparseWeights>(SparseWeights::from_dense(40, 216, weights)), {}, options,
                  kernels);
  Tensor in = random_tensor(random, element_count(shape, Layout::planes));
  Tensor expected = run(conv, pool, kernels, shape, in, nullptr);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&, caller] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        Tensor y = run(conv, pool, kernels, shape, in, nullptr);
        for (std::int64_t i = 0; i < 2 * 40 * 14 * 14; ++i) wrong += y[i] != expected[i];
        // Some pack for other shapes meanwhile, from the source or from each other's packings.
        conv.prepare({1, 24, 14 + repeat % 3 * 9, 14 + caller * 7}, 1 + repeat % 3);
        if (repeat == 5 + caller) conv.release_source();
        wrong += conv.weight_bytes() == 0;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  check(wrong == 0, "concurrent runs give the same bits");
}

}  // namespace
}  // namespace sift::cpu

int main() {
  using namespace sift::cpu;
  test_pool();
  test_concurrent_loops();
  test_encodings();
  {
    Random random(2);
    test_bodies(random);
  }
  ThreadPool pool(3);
  const std::vector<std::string> isas = sift::isa::isas_of(sift::isa::cpu_features());
  std::printf("instruction sets:");
  for (const std::string& isa : isas) std::printf(" %s", isa.c_str());
  std::printf("\n");
  for (const std::string& isa : isas) {
    const KernelTable& kernels = *find_kernels(isa.c_str());
    Random random(1);
    for (int i = 0; i < 9; ++i) {
      test_conv(random, random_geometry(random), pool, kernels, isa);
      test_matmul(random, pool, kernels, isa);
      test_dense_product(random, pool, kernels, isa);
      test_windows(random, pool, kernels, isa);
      test_normalization(random, pool, kernels, isa);
      test_attention(random, pool, kernels, isa);
    }
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
    test_empty(random, pool, kernels, isa);
    test_concurrent_runs(kernels);
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
