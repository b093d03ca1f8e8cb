#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/isa.h"
#include "int8/conversions.h"
#include "int8/exact_quotients.h"
#include "int8/positions.h"
#include "int8/quad_elementwise.h"
#include "int8/quad_pool.h"
#include "int8/quantized_conv.h"
#include "jit/code_memory.h"
#include "suites.h"

namespace sift::cpu {
namespace {

std::uint8_t random_byte(Random& random) { return static_cast<std::uint8_t>(random.between(0, 255)); }

// Of quads, with bytes of any value in idle lanes and channels.
Tensor random_quads(Random& random, const Shape& shape) {
  Tensor tensor(element_count(shape, Layout::quads));
  auto* const bytes = reinterpret_cast<std::uint8_t*>(tensor.data());
  for (std::int64_t i = 0; i < 4 * element_count(shape, Layout::quads); ++i) bytes[i] = random_byte(random);
  return tensor;
}

std::uint8_t byte_at(Tensor& quads, const Shape& shape, std::int64_t n, std::int64_t c, std::int64_t y,
                     std::int64_t x) {
  const std::int64_t position = (n * shape.h + y) * shape.w + x;
  return reinterpret_cast<std::uint8_t*>(
      quads.data())[position / kQuadBlock * block_bytes(shape) + c / kQuad * kBlockBytes +
                    position % kQuadBlock * kQuad + c % kQuad];
}

template <typename Visit>
void for_elements(const Shape& shape, const Visit& visit) {
  for (std::int64_t n = 0; n < shape.n; ++n) {
    for (std::int64_t c = 0; c < shape.c; ++c) {
      for (std::int64_t y = 0; y < shape.h; ++y) {
        for (std::int64_t x = 0; x < shape.w; ++x) visit(n, c, y, x);
      }
    }
  }
}

struct Layer {
  ConvGeometry geometry;
  std::int64_t rows;
  std::int64_t groups;
  std::vector<std::int8_t> values;
  std::vector<std::int32_t> bias;
  std::uint8_t zero_point;

  std::int64_t sum(Tensor& in, const Shape& shape, std::int64_t n, std::int64_t row, std::int64_t y,
                   std::int64_t x) const {
    const ConvGeometry& g = geometry;
    const std::int64_t of_group = shape.c / groups;
    std::int64_t sum = bias[static_cast<std::size_t>(row)];
    for (std::int64_t c = 0; c < of_group; ++c) {
      for (std::int64_t tap = 0; tap < g.kernel_h * g.kernel_w; ++tap) {
        const std::int64_t from_y = y * g.stride_h - g.pad_top + tap / g.kernel_w * g.dilation_h;
        const std::int64_t from_x = x * g.stride_w - g.pad_left + tap % g.kernel_w * g.dilation_w;
        if (from_y < 0 || from_y >= shape.h || from_x < 0 || from_x >= shape.w) continue;
        const std::int64_t channel = row / (rows / groups) * of_group + c;
        const int value = values[static_cast<std::size_t>((row * of_group + c) * g.kernel_h * g.kernel_w + tap)];
        sum += value * (byte_at(in, shape, n, channel, from_y, from_x) - zero_point);
      }
    }
    return sum;
  }
};

Layer random_layer(Random& random, const Shape& shape, std::int64_t groups) {
  Layer layer{.geometry = {},
              .rows = groups * random.between(1, 40),
              .groups = groups,
              .values = {},
              .bias = {},
              .zero_point = random_byte(random)};
  ConvGeometry& g = layer.geometry;
  g.kernel_h = random.between(1, 3);
  g.kernel_w = random.between(1, 3);
  g.stride_h = random.between(1, 2);
  g.stride_w = random.between(1, 3);
  g.dilation_h = random.between(1, 2);
  g.dilation_w = random.between(1, 2);
  g.pad_top = random.between(0, 2);
  g.pad_left = random.between(0, 2);
  g.pad_bottom = random.between(0, 2);
  g.pad_right = random.between(0, 2);
  layer.values.resize(static_cast<std::size_t>(layer.rows * shape.c / groups * g.kernel_h * g.kernel_w));
  for (std::int8_t& value : layer.values) {
    if (random.chance(0.2)) value = static_cast<std::int8_t>(random.between(-128, 127));
  }
  for (std::int64_t row = 0; row < layer.rows; ++row) {
    layer.bias.push_back(static_cast<std::int32_t>(random.between(-500, 500)));
  }
  return layer;
}

void test_convolution(Random& random, ThreadPool& pool, const Int8Kernels& kernels, QuadAlgorithm algorithm,
                      const std::string& name) {
  const std::int64_t groups = random.between(1, 3);
  const Shape shape{random.between(1, 3), groups * random.between(1, 9), random.between(1, 12), random.between(1, 30)};
  const Layer layer = random_layer(random, shape, groups);
  const ConvGeometry& g = layer.geometry;
  const QuadWeights weights(layer.rows, shape.c, g.kernel_h, g.kernel_w, groups, layer.values);
  const std::vector<float> multipliers{0.0078125F};
  const QuantizedConv conv(QuadProduct(weights, layer.bias, g, algorithm, kernels), multipliers, 1, layer.zero_point,
                           99, {.low = 20, .high = 250}, std::nullopt);
  const DequantizedConv floats(QuadProduct(weights, layer.bias, g, algorithm, kernels), multipliers, {},
                               layer.zero_point, std::nullopt, -1e9F, 1e9F, Layout::nchw);
  const Shape out = conv.output_shape(shape);
  if (element_count(out, Layout::quads) == 0) return;
  Tensor in = random_quads(random, shape);
  Tensor y(element_count(out, Layout::quads));
  Tensor z(element_count(out, Layout::nchw));
  conv.run(pool, shape, in.data(), {}, y.data());
  floats.run(pool, shape, in.data(), {}, z.data());
  for_elements(out, [&](std::int64_t n, std::int64_t row, std::int64_t h, std::int64_t w) {
    const float exact = static_cast<float>(layer.sum(in, shape, n, row, h, w)) * multipliers.front();
    const float rounded = std::clamp(std::nearbyint(exact) + 99, 20.0F, 250.0F);
    check(byte_at(y, out, n, row, h, w) == rounded, "quantized convolution, " + name);
    check(z[((n * out.c + row) * out.h + h) * out.w + w] == exact, "dequantized convolution, " + name);
  });
}

void test_pooling(Random& random, ThreadPool& pool, const Int8Kernels& kernels, const std::string& name) {
  const Shape shape{random.between(1, 18), random.between(1, 9), random.between(3, 9), random.between(3, 20)};
  ConvGeometry g;
  g.kernel_h = random.between(1, 3);
  g.kernel_w = random.between(1, 3);
  g.stride_h = random.between(1, 2);
  g.stride_w = random.between(1, 2);
  g.pad_top = g.pad_left = g.pad_right = random.between(0, 1);
  Tensor in = random_quads(random, shape);
  const QuadMaxPool most(g, false, kernels);
  const Shape out = most.output_shape(shape);
  Tensor y(element_count(out, Layout::quads));
  most.run(pool, shape, in.data(), {}, y.data());
  for_elements(out, [&](std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    int expected = 0;
    for (std::int64_t tap = 0; tap < g.kernel_h * g.kernel_w; ++tap) {
      const std::int64_t from_y = h * g.stride_h - g.pad_top + tap / g.kernel_w;
      const std::int64_t from_x = w * g.stride_w - g.pad_left + tap % g.kernel_w;
      if (from_y < 0 || from_y >= shape.h || from_x < 0 || from_x >= shape.w) continue;
      expected = std::max<int>(expected, byte_at(in, shape, n, c, from_y, from_x));
    }
    check(byte_at(y, out, n, c, h, w) == expected, "max pool of quads, " + name);
  });
  const QuadAveragePool mean(g, false, false, {1, 0}, {1, 0}, kernels);
  mean.run(pool, shape, in.data(), {}, y.data());
  const QuadGlobalAverage global({1, 0}, {1, 0}, kernels);
  Tensor means(element_count(global.output_shape(shape), Layout::quads));
  global.run(pool, shape, in.data(), {}, means.data());
}

// There and back.
void test_conversions(Random& random, ThreadPool& pool, const Int8Kernels& kernels, const std::string& name) {
  const Shape shape{random.between(1, 18), random.between(1, 9), random.between(1, 4), random.between(1, 20)};
  const std::int64_t words = element_count(shape, Layout::quads);
  Tensor in = random_quads(random, shape);
  Tensor back(words);
  for (const Layout layout : {Layout::nchw, Layout::nchw_n16}) {
    Tensor floats(element_count(shape, layout));
    Dequantize({0.5F, 100}, layout, kernels).run(pool, shape, in.data(), {}, floats.data());
    Quantize({0.5F, 100}, layout, kernels).run(pool, shape, floats.data(), {}, back.data());
    for_elements(shape, [&](auto... at) {
      check(byte_at(in, shape, at...) == byte_at(back, shape, at...), "quantization, " + name);
    });
    Tensor dynamic(element_count(shape, Layout::dynamic_quads));
    DynamicQuantize(layout, kernels).run(pool, shape, floats.data(), {}, dynamic.data());
    check(read_dynamic_scale(dynamic.data()).scale > 0, "dynamic quantization, " + name);
  }
  Tensor bytes(element_count(shape, Layout::bytes));
  ReorderBytes(false, true, kernels).run(pool, shape, in.data(), {}, bytes.data());
  ReorderBytes(true, true, kernels).run(pool, shape, bytes.data(), {}, back.data());
  for_elements(shape, [&](auto... at) {
    check(byte_at(in, shape, at...) == byte_at(back, shape, at...), "plain bytes, " + name);
  });
  const ScaledAddition addition{.own = {1, 3}, .other = {1, 5}, .sum = {1, 0}};
  Tensor sum(words);
  QuadAdd(addition, 0, 255, kernels).run(pool, shape, in.data(), back.data(), sum.data());
  for_elements(shape, [&](auto... at) {
    const int expected = std::clamp(2 * byte_at(in, shape, at...) - 8, 0, 255);
    check(byte_at(sum, shape, at...) == expected, "sums of quads, " + name);
  });
  const QuadChannels channels(0, shape.c, 1, shape.c + 2);
  Tensor wider(element_count(channels.output_shape(shape), Layout::quads));
  channels.run(pool, shape, in.data(), {}, wider.data());
}

// A product with the reciprocal, corrected once, is rounded as the quotient is, next to all halves.
void test_quotients(Random& random) {
  int exact = 0;
  constexpr int kDivisors = 200;
  for (int i = 0; i < kDivisors; ++i) {
    const float divisor = std::ldexp(1 + static_cast<float>(random.between(0, (1 << 23) - 1)) * 0x1p-23F,
                                     static_cast<int>(random.between(-20, 20)));
    if (!divides_in_code(divisor)) continue;
    ++exact;
    const float reciprocal = 1 / divisor;
    for (int k = 0; k <= 256; ++k) {
      float value = (static_cast<float>(k) + 0.5F) * divisor;
      for (int step = 0; step < 3; ++step) value = std::nextafter(value, 0.0F);
      for (int step = 0; step < 6; ++step, value = std::nextafter(value, 1e30F)) {
        const float quotient = value * reciprocal;
        const float corrected = std::fma(std::fma(quotient, -divisor, value), reciprocal, quotient);
        check(std::nearbyint(corrected) == std::nearbyint(value / divisor), "quotient by a reciprocal");
      }
    }
  }
  check(exact > kDivisors * 9 / 10, "divisors that generated code may take");
  for (const float divisor : {0.0F, -1.0F, 1e-30F, 1e30F}) check(!divides_in_code(divisor), "divisors it may not take");
}

void test_instruction_sets() {
  using Names = std::vector<std::string>;
  check(isa::int8_isas_of({"avx2", "fma", "f16c", "avx_vnni"}) == Names{"avx_vnni", "avx2_madd", "portable"},
        "avx_vnni");
  check(isa::int8_isas_of({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"}) ==
            Names{"avx2_madd", "portable"},
        "AVX-512 without dot products");
  check(isa::int8_isas_of({"neon"}) == Names{"neon_mull", "portable"}, "NEON");
  check(isa::int8_isas_of({"neon", "asimddp", "i8mm"}) == Names{"neon_i8mm", "neon_dot", "neon_mull", "portable"},
        "NEON with dot products of both kinds");
}

}  // namespace

void test_int8(Random& random, ThreadPool& pool) {
  constexpr int kRounds = 12;
  test_instruction_sets();
  test_quotients(random);
  for (const std::string& isa : isa::int8_isas_of(isa::cpu_features())) {
    const Int8Kernels& kernels = *find_int8_kernels(isa.c_str());
    for (int round = 0; round < kRounds; ++round) {
      test_convolution(random, pool, kernels, QuadAlgorithm::lists, isa);
      if (kernels.runs_generated && may_execute_code()) {
        test_convolution(random, pool, kernels, QuadAlgorithm::code, isa + ", code");
        test_convolution(random, pool, kernels, QuadAlgorithm::code_in_fours, isa + ", code of fours");
      }
      test_pooling(random, pool, kernels, isa);
      test_conversions(random, pool, kernels, isa);
    }
  }
}

}  // namespace sift::cpu
