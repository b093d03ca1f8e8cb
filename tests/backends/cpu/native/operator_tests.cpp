#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "conv/banded/banded_depthwise.h"
#include "conv/conv.h"
#include "conv/pooled_winograd.h"
#include "ops/attention.h"
#include "ops/channel_copy.h"
#include "ops/depth_to_space.h"
#include "ops/elementwise.h"
#include "ops/global_pool.h"
#include "ops/linear_resize.h"
#include "ops/normalize.h"
#include "ops/pixel_copy.h"
#include "ops/rearrange.h"
#include "ops/reorder.h"
#include "ops/windows/window_op.h"
#include "products/dense_product.h"
#include "products/matmul.h"
#include "suites.h"

namespace sift::cpu {
namespace {

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
  Tensor in = random_tensor(random, element_count(shape, Layout::nchw));
  std::vector<float> values(static_cast<std::size_t>(shape.c * g.kernel_h * g.kernel_w));
  for (float& value : values) value = random.value();
  std::vector<std::uint8_t> mask((values.size() + 7) / 8);
  for (std::uint8_t& byte : mask) byte = static_cast<std::uint8_t>(random.between(0, 255));
  const auto weights = std::make_shared<const SparseWeights>(
      SparseWeights::from_dense(shape.c, g.kernel_h * g.kernel_w, values, false, mask));
  const auto agree = [&](const Op& nchw, const Op& nchw_n16) {
    Tensor a = run(nchw, pool, kernels, shape, in, nullptr);
    Tensor b = run(nchw_n16, pool, kernels, shape, in, nullptr);
    const std::int64_t count = element_count(nchw.output_shape(shape), Layout::nchw);
    for (std::int64_t i = 0; i < count; ++i) check(std::abs(a[i] - b[i]) < 1e-4F, "window, " + isa);
  };
  const Activation silu{ActivationKind::silu, 0, 0};
  agree(Depthwise(weights, {}, g, silu, Layout::nchw, kernels),
        Depthwise(weights, {}, g, silu, Layout::nchw_n16, kernels));
  agree(MaxPool(g, true, Layout::nchw, kernels), MaxPool(g, true, Layout::nchw_n16, kernels));
  agree(AveragePool(g, true, false, Layout::nchw, kernels), AveragePool(g, true, false, Layout::nchw_n16, kernels));
  agree(GlobalAveragePool(Layout::nchw, kernels), GlobalAveragePool(Layout::nchw_n16, kernels));
}

// Bands must agree with the layers one after the other; a tile of few blocks may add its sums in another order.
void test_bands(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const std::int64_t inner = random.between(1, 40);
  const Shape shape{random.between(1, 3), random.between(1, 9), random.between(4, 20), random.between(4, 40)};
  ConvGeometry g;
  g.kernel_h = random.between(1, 4);
  g.kernel_w = random.between(1, 4);
  g.stride_h = random.between(1, 3);
  g.stride_w = random.between(1, 3);
  g.pad_top = g.pad_bottom = random.between(0, 4);
  g.pad_left = g.pad_right = random.between(0, 4);
  const auto weights = [&](std::int64_t rows, std::int64_t columns) {
    std::vector<float> values(static_cast<std::size_t>(rows * columns));
    for (float& value : values) value = random.between(0, 2) == 0 ? random.value() : 0.0F;
    return std::make_shared<const SparseWeights>(SparseWeights::from_dense(rows, columns, values));
  };
  ConvOptions options;
  options.activation = {ActivationKind::clip, 0, 6};
  options.layout = Layout::nchw;
  const auto before = std::make_shared<const Conv>(weights(inner, shape.c), std::vector<float>{}, options, kernels);
  const auto depthwise =
      std::make_shared<const Depthwise>(weights(inner, g.kernel_h * g.kernel_w), std::vector<float>{}, g,
                                        Activation{ActivationKind::silu, 0, 0}, Layout::nchw, kernels);
  const auto after =
      std::make_shared<const Conv>(weights(random.between(1, 20), inner), std::vector<float>{}, options, kernels);
  const BandedDepthwise banded(before, depthwise, after, random.between(1, 6));
  Tensor in = random_tensor(random, element_count(shape, Layout::nchw));
  Tensor expanded = run(*before, pool, kernels, shape, in, nullptr);
  const Shape inside = before->output_shape(shape);
  Tensor filtered = run(*depthwise, pool, kernels, inside, expanded, nullptr);
  Tensor expected = run(*after, pool, kernels, depthwise->output_shape(inside), filtered, nullptr);
  Tensor found = run(banded, pool, kernels, shape, in, nullptr);
  const std::int64_t count = element_count(banded.output_shape(shape), Layout::nchw);
  for (std::int64_t i = 0; i < count; ++i) check(std::abs(found[i] - expected[i]) < 1e-4F, "bands, " + isa);
}

void test_copies(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const Shape shape{random.between(1, 18), 4 * random.between(1, 3), random.between(1, 9), random.between(1, 20)};
  Tensor in = random_tensor(random, element_count(shape, Layout::nchw));
  const auto agree = [&](const Op& nchw, const Op& nchw_n16) {
    Tensor a = run(nchw, pool, kernels, shape, in, nullptr);
    Tensor b = run(nchw_n16, pool, kernels, shape, in, nullptr);
    const std::int64_t count = element_count(nchw.output_shape(shape), Layout::nchw);
    for (std::int64_t i = 0; i < count; ++i) check(std::abs(a[i] - b[i]) < 1e-5F, "copy, " + isa);
  };
  std::vector<std::int64_t> channels;
  for (int i = 0; i < 6; ++i) channels.push_back(random.between(0, shape.c - 1));
  agree(ChannelCopy(channels, 0, 6, Layout::nchw), ChannelCopy(channels, 0, 6, Layout::nchw_n16));
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> columns;
  std::vector<Between> high;
  std::vector<Between> wide;
  for (int i = 0; i < 11; ++i) {
    rows.push_back(random.between(-1, shape.h - 1));
    columns.push_back(random.between(-1, shape.w - 1));
    high.push_back({random.between(0, shape.h - 1), shape.h - 1, 0.25F});
    wide.push_back({shape.w - 1, random.between(0, shape.w - 1), 0.75F});
  }
  agree(PixelCopy(rows, columns, 1, Layout::nchw), PixelCopy(rows, columns, 1, Layout::nchw_n16));
  agree(LinearResize(high, wide, Layout::nchw), LinearResize(high, wide, Layout::nchw_n16));
  agree(DepthToSpace(2, 2, true, Layout::nchw), DepthToSpace(2, 2, true, Layout::nchw_n16));
  agree(DepthToSpace(1, 4, false, Layout::nchw), DepthToSpace(1, 4, false, Layout::nchw_n16));
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
      const auto weights = std::make_shared<const SparseWeights>(SparseWeights::from_dense(shape.c, taps, values));
      std::vector<float> bias(static_cast<std::size_t>(shape.c), 2.0F);
      const auto agree = [&](const Op& nchw, const Op& nchw_n16, float expected) {
        Tensor a = run(nchw, pool, kernels, shape, in, nullptr);
        Tensor b = run(nchw_n16, pool, kernels, shape, in, nullptr);
        const std::int64_t count = element_count(nchw.output_shape(shape), Layout::nchw);
        for (std::int64_t j = 0; j < count; ++j) check(a[j] == expected && b[j] == expected, "empty input, " + isa);
      };
      agree(Depthwise(weights, bias, g, {}, Layout::nchw, kernels),
            Depthwise(weights, bias, g, {}, Layout::nchw_n16, kernels), 2.0F);
      agree(MaxPool(g, true, Layout::nchw, kernels), MaxPool(g, true, Layout::nchw_n16, kernels),
            std::numeric_limits<float>::lowest());
      agree(AveragePool(g, true, true, Layout::nchw, kernels), AveragePool(g, true, true, Layout::nchw_n16, kernels),
            0.0F);
      if (shape.c == 0) continue;
      std::vector<float> rows(static_cast<std::size_t>(16 * shape.c * taps));
      for (float& weight : rows) weight = random.chance(0.5) ? random.value() : 0.0F;
      const auto sparse = std::make_shared<const SparseWeights>(SparseWeights::from_dense(16, shape.c * taps, rows));
      const std::vector<float> biases(16, 3.0F);
      ConvOptions in_nchw{.geometry = g, .activation = {}, .layout = Layout::nchw, .form = std::nullopt};
      ConvOptions in_nchw_n16 = in_nchw;
      in_nchw_n16.layout = Layout::nchw_n16;
      agree(Conv(sparse, biases, in_nchw, kernels), Conv(sparse, biases, in_nchw_n16, kernels), 3.0F);
    }
    ConvGeometry first{.kernel_h = 3, .kernel_w = 3, .pad_top = 2, .pad_left = 2, .pad_bottom = 2, .pad_right = 2};
    ConvGeometry window{.kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2};
    if (shape.c > 0) {
      const std::vector<float> ones(static_cast<std::size_t>(16 * shape.c * 9), 1.0F);
      const SparseWeights dense = SparseWeights::from_dense(16, shape.c * 9, ones);
      for (const Layout layout : {Layout::nchw, Layout::nchw_n16}) {
        run(Winograd(dense, {}, first, {}, layout, kernels), pool, kernels, shape, in, nullptr);
        run(PooledWinograd(dense, {}, first, {}, window, false, layout, kernels), pool, kernels, shape, in, nullptr);
      }
    }
    std::vector<float> channels(static_cast<std::size_t>(shape.c), 1.0F);
    const Shape matrix{shape.n, shape.c};
    Tensor rows = random_tensor(random, shape.n * shape.c);
    for (const Layout layout : {Layout::nchw, Layout::nchw_n16}) {
      run(GlobalAveragePool(layout, kernels), pool, kernels, shape, in, nullptr);
      run(Elementwise(BinaryKind::add, {}, layout, kernels), pool, kernels, shape, in, &in);
      run(ChannelScale(channels, channels, {}, {}, layout, kernels), pool, kernels, shape, in, nullptr);
      if (shape.c == 0) continue;
      run(LayerNormalization(channels, channels, 1e-3F, true, layout, kernels), pool, kernels, matrix, rows, nullptr);
    }
  }
  const std::vector<float> ones(std::size_t{70} * 300, 1.0F);
  const auto weights = std::make_shared<const SparseWeights>(SparseWeights::from_dense(70, 300, ones));
  Tensor nothing(0);
  // The convolution has no output, the pooling behind it has: of padding.
  const Shape low{2, 3, 2, 5};
  Tensor few = random_tensor(random, element_count(low, Layout::nchw));
  const SparseWeights dense = SparseWeights::from_dense(16, 27, std::span(ones).first(16 * 27));
  const ConvGeometry unpadded{.kernel_h = 3, .kernel_w = 3};
  const ConvGeometry padded{.kernel_h = 2, .kernel_w = 2, .pad_top = 1, .pad_left = 1, .pad_bottom = 1, .pad_right = 1};
  for (const Layout layout : {Layout::nchw, Layout::nchw_n16}) {
    const PooledWinograd op(dense, {}, unpadded, {}, padded, false, layout, kernels);
    const std::int64_t count = element_count(op.output_shape(low), Layout::nchw);
    Tensor y = run(op, pool, kernels, low, few, nullptr);
    check(count > 0, "there is padding to pool");
    for (std::int64_t i = 0; i < count; ++i) {
      check(y[i] == std::numeric_limits<float>::lowest(), "pooled padding, " + isa);
    }
  }
  run(Matmul(*weights, {}, {}, kernels), pool, kernels, {0, 300}, nothing, nullptr);
  run(DenseProduct(*weights, {}, {}, kernels), pool, kernels, {0, 300}, nothing, nullptr);
}

void test_normalization(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const bool of_pixels = random.chance(0.5);
  const Shape shape{random.between(1, 35), random.between(1, 70), of_pixels ? random.between(1, 5) : 1,
                    of_pixels ? random.between(1, 9) : 1};
  std::vector<float> scale(static_cast<std::size_t>(shape.c));
  for (float& value : scale) value = random.value();
  Tensor in = random_tensor(random, element_count(shape, Layout::nchw));
  const bool is_centered = random.chance(0.5);
  const auto normalized = [&](Layout layout) {
    return run(LayerNormalization(scale, scale, 1e-3F, is_centered, layout, kernels), pool, kernels, shape, in,
               nullptr);
  };
  Tensor a = normalized(Layout::nchw);
  Tensor b = normalized(Layout::nchw_n16);
  const std::int64_t count = element_count(shape, Layout::nchw);
  for (std::int64_t i = 0; i < count; ++i) check(std::abs(a[i] - b[i]) < 1e-4F, "normalization, " + isa);
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
  options.key_tokens = random.chance(0.5) ? options.tokens : random.between(1, 40);
  options.heads = random.between(1, 3);
  options.depth = random.between(1, 9);
  options.value_depth = options.depth;
  const std::int64_t channels = options.heads * options.depth;
  options.queries = options.keys = options.values = {channels, 0};
  options.mask = MaskShape{options.sequences, 1, random.chance(0.5) ? options.tokens : 1, options.key_tokens};
  const Shape shape{options.sequences * options.tokens, channels};
  const Shape key_shape{options.sequences * options.key_tokens, channels};
  const Shape shapes[3]{shape, key_shape, key_shape};
  Tensor x[3]{random_tensor(random, shape.n * channels), random_tensor(random, key_shape.n * channels),
              random_tensor(random, key_shape.n * channels)};
  Tensor mask = random_tensor(random, options.mask->size());
  const std::int64_t lanes = element_count(shape, Layout::nchw_n16);
  const std::int64_t key_lanes = element_count(key_shape, Layout::nchw_n16);
  Tensor blocks[4]{Tensor(lanes), Tensor(key_lanes), Tensor(key_lanes), Tensor(lanes)};
  for (int i = 0; i < 3; ++i) Reorder(Layout::nchw, kernels).run(pool, shapes[i], x[i].data(), {}, blocks[i].data());
  Attention(options, kernels)
      .run(pool, shape, blocks[0].data(), {blocks[1].data(), blocks[2].data(), mask.data()}, blocks[3].data());
  Tensor in_lanes(shape.n * channels);
  Reorder(Layout::nchw_n16, kernels).run(pool, shape, blocks[3].data(), {}, in_lanes.data());
  options.layout = Layout::nchw;
  Tensor in_nchw(shape.n * channels);
  Attention(options, kernels).run(pool, shape, x[0].data(), {x[1].data(), x[2].data(), mask.data()}, in_nchw.data());

  // One head is compared with plain arithmetic, all of them with each other.
  for (std::int64_t row = 0; row < shape.n; ++row) {
    const std::int64_t sequence = row / options.tokens;
    const std::int64_t mask_row =
        options.mask->queries == 1 ? sequence : sequence * options.tokens + row % options.tokens;
    double sum = 0;
    std::vector<double> expected(static_cast<std::size_t>(options.depth));
    for (std::int64_t token = 0; token < options.key_tokens; ++token) {
      const std::int64_t key = sequence * options.key_tokens + token;
      const double weight = std::exp(score(x[0], x[1], row, key, channels, options.depth) +
                                     double{mask[mask_row * options.key_tokens + token]});
      sum += weight;
      for (std::int64_t c = 0; c < options.depth; ++c) {
        expected[static_cast<std::size_t>(c)] += weight * double{x[2][key * channels + c]};
      }
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      const float value = in_lanes[row * channels + c];
      check(std::abs(value - in_nchw[row * channels + c]) < 1e-5F, "attention in two layouts, " + isa);
      if (c < options.depth) {
        check(std::abs(value - expected[static_cast<std::size_t>(c)] / sum) < 1e-4, "attention, " + isa);
      }
    }
  }
}

// Rows in lanes, some of them left out, to a tensor in lanes and to one in planes.
void test_rearrangement(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  const Shape in{random.between(1, 40), random.between(1, 40)};
  const Shape out{random.between(1, 40), in.c};
  Tensor x = random_tensor(random, in.n * in.c);
  Tensor lanes(element_count(in, Layout::nchw_n16));
  Reorder(Layout::nchw, kernels).run(pool, in, x.data(), {}, lanes.data());
  std::vector<std::int64_t> rows(static_cast<std::size_t>(out.n));
  RearrangeMap map;
  for (std::int64_t& row : rows) {
    row = random.chance(0.2) || &row == rows.data() ? random.between(0, in.n - 1) : ((&row)[-1] + 1) % in.n;
    map.positions.push_back(row / kLanes * in.c * kLanes + row % kLanes);
  }
  for (std::int64_t c = 0; c < in.c; ++c) map.channels.push_back(c * kLanes);
  for (const Layout layout : {Layout::nchw, Layout::nchw_n16}) {
    Tensor y(element_count(out, layout));
    Rearrange(map, in, Layout::nchw_n16, out, layout, kernels).run(pool, in, lanes.data(), {}, y.data());
    Tensor planes(out.n * out.c);
    if (layout == Layout::nchw_n16) {
      Reorder(layout, kernels).run(pool, out, y.data(), {}, planes.data());
    } else {
      std::copy_n(y.data(), out.n * out.c, planes.data());
    }
    for (std::int64_t i = 0; i < out.n * out.c; ++i) {
      check(planes[i] == x[rows[static_cast<std::size_t>(i / out.c)] * in.c + i % out.c], "rearrangement, " + isa);
    }
  }
}

}  // namespace

void test_operators(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa) {
  for (int i = 0; i < 9; ++i) {
    test_windows(random, pool, kernels, isa);
    test_bands(random, pool, kernels, isa);
    test_copies(random, pool, kernels, isa);
    test_normalization(random, pool, kernels, isa);
    test_attention(random, pool, kernels, isa);
    test_rearrangement(random, pool, kernels, isa);
  }
  test_empty(random, pool, kernels, isa);
}

}  // namespace sift::cpu
