#include "int8/quad_pool.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "int8/positions.h"

namespace sift::cpu {
namespace {

std::uint8_t* thread_bytes(std::int64_t bytes) {
  static thread_local AlignedBuffer buffer;
  return reinterpret_cast<std::uint8_t*>(buffer.floats(static_cast<std::size_t>(bytes) / sizeof(float)));
}

// What a sum of `count` values is multiplied by, in the order in which onnxruntime does it.
float mean_multiplier(Quantization in, Quantization out, std::int64_t count) {
  return in.scale / (out.scale * static_cast<float>(count));
}

}  // namespace

QuadPool::QuadPool(const ConvGeometry& geometry, bool ceil_mode, const Int8Kernels& kernels)
    : geometry_(geometry), ceil_mode_(ceil_mode), kernels_(kernels) {
  for (const std::int64_t pad : {geometry.pad_top, geometry.pad_left, geometry.pad_bottom, geometry.pad_right}) {
    if (pad < 0) throw std::invalid_argument("quad pool: padding must not be negative");
  }
}

Shape QuadPool::output_shape(const Shape& in) const {
  if (ceil_mode_) return {in.n, in.c, geometry_.ceiled_h(in.h), geometry_.ceiled_w(in.w)};
  return {in.n, in.c, geometry_.output_h(in.h), geometry_.output_w(in.w)};
}

void QuadMaxPool::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const Shape out_shape = output_shape(shape);
  const WindowReader reader(geometry_, shape, out_shape);
  const auto* const from = reinterpret_cast<const std::uint8_t*>(in);
  auto* const to = reinterpret_cast<std::uint8_t*>(out);
  const std::int64_t bytes = block_bytes(shape);
  pool.parallel_for(block_count(out_shape), [&](std::int64_t block) {
    std::uint8_t* const taps = thread_bytes(reader.taps() * bytes);
    reader.read_maxima(kernels_, from, block, taps, to + block * bytes);
  });
}

QuadAveragePool::QuadAveragePool(const ConvGeometry& geometry, bool ceil_mode, bool count_padding, Quantization in,
                                 Quantization out, const Int8Kernels& kernels)
    : QuadPool(geometry, ceil_mode, kernels), count_padding_(count_padding), in_(in), out_(out) {
  check_scale(in.scale);
  check_scale(out.scale);
}

void QuadAveragePool::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const Shape out_shape = output_shape(shape);
  const ConvGeometry& g = geometry_;
  const WindowReader reader(g, shape, out_shape);
  const auto* const from = reinterpret_cast<const std::uint8_t*>(in);
  auto* const to = reinterpret_cast<std::uint8_t*>(out);
  const std::int64_t bytes = block_bytes(shape);
  // Taps in [low, high) of one axis.
  const auto inside = [](std::int64_t at, std::int64_t kernel, std::int64_t dilation, std::int64_t low,
                         std::int64_t high) {
    std::int64_t count = 0;
    for (std::int64_t tap = 0; tap < kernel; ++tap) count += at + tap * dilation >= low && at + tap * dilation < high;
    return count;
  };
  pool.parallel_for(block_count(out_shape), [&](std::int64_t block) {
    std::uint8_t* const taps = thread_bytes(reader.taps() * bytes);
    reader.read(kernels_, from, in_.zero_point, block, taps);
    float multipliers[kQuadBlock] = {};
    const std::int64_t count = std::min(kQuadBlock, position_count(out_shape) - block * kQuadBlock);
    for (std::int64_t lane = 0; lane < count; ++lane) {
      const std::int64_t position = block * kQuadBlock + lane;
      const std::int64_t y = position / out_shape.w % out_shape.h * g.stride_h - g.pad_top;
      const std::int64_t x = position % out_shape.w * g.stride_w - g.pad_left;
      const std::int64_t pads[] = {g.pad_top, g.pad_left, g.pad_bottom, g.pad_right};
      const auto pad = [&](int side) { return count_padding_ ? pads[side] : 0; };
      const std::int64_t rows = inside(y, g.kernel_h, g.dilation_h, -pad(0), shape.h + pad(2));
      const std::int64_t columns = inside(x, g.kernel_w, g.dilation_w, -pad(1), shape.w + pad(3));
      multipliers[lane] = rows * columns == 0 ? 0 : mean_multiplier(in_, out_, rows * columns);
    }
    for (std::int64_t at = 0; at < bytes; ++at) {
      std::int32_t sum = 0;
      for (std::int64_t tap = 0; tap < reader.taps(); ++tap) sum += taps[tap * bytes + at] - in_.zero_point;
      const float value = static_cast<float>(sum) * multipliers[at % kBlockBytes / kQuad];
      const float low = -static_cast<float>(out_.zero_point);
      to[block * bytes + at] =
          static_cast<std::uint8_t>(std::nearbyint(std::clamp(value, low, 255 + low)) + out_.zero_point);
    }
  });
}

QuadGlobalAverage::QuadGlobalAverage(Quantization in, Quantization out, const Int8Kernels& kernels)
    : in_(in), out_(out), kernels_(kernels) {
  check_scale(in.scale);
  check_scale(out.scale);
}

Shape QuadGlobalAverage::output_shape(const Shape& in) const {
  if (in.h * in.w == 0) throw std::invalid_argument("quad global average: an image has no pixels");
  check_positions(in);
  return {in.n, in.c, 1, 1};
}

void QuadGlobalAverage::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const auto* const from = reinterpret_cast<const std::uint8_t*>(in);
  auto* const to = reinterpret_cast<std::uint8_t*>(out);
  const std::int64_t pixels = shape.h * shape.w;
  const std::int64_t bytes = block_bytes(shape);
  const float multiplier = mean_multiplier(in_, out_, pixels);
  const float multipliers[kQuad] = {multiplier, multiplier, multiplier, multiplier};
  // 16 images of one quad of channels are one block of the output.
  pool.parallel_for(ceil_div(shape.n, kQuadBlock) * quad_count(shape), [&](std::int64_t task) {
    const std::int64_t quad = task % quad_count(shape);
    const std::int64_t group = task / quad_count(shape);
    alignas(64) std::int32_t sums[kQuad * kQuadBlock] = {};
    for (std::int64_t lane = 0; lane < std::min(kQuadBlock, shape.n - group * kQuadBlock); ++lane) {
      std::int32_t of_channel[kQuad] = {};
      kernels_.sum_positions({.in = from + quad * kBlockBytes,
                              .block_bytes = bytes,
                              .first = (group * kQuadBlock + lane) * pixels,
                              .count = pixels,
                              .sums = of_channel});
      for (std::int64_t k = 0; k < kQuad; ++k) {
        sums[k * kQuadBlock + lane] = of_channel[k] - static_cast<std::int32_t>(pixels) * in_.zero_point;
      }
    }
    kernels_.requantize({.sums = sums,
                         .rows = kQuad,
                         .multipliers = multipliers,
                         .divisor = 1,
                         .zero_point = static_cast<float>(out_.zero_point),
                         .low = 0,
                         .high = 255,
                         .addition = nullptr,
                         .other = nullptr,
                         .rests = nullptr,
                         .out = to + (group * quad_count(shape) + quad) * kBlockBytes});
  });
}

}  // namespace sift::cpu
