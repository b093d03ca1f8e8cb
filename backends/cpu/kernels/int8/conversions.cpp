#include "int8/conversions.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "base/thread_pool.h"
#include "int8/positions.h"

namespace sift::cpu {
namespace {

void check_floats(Layout layout) {
  if (layout != Layout::nchw && layout != Layout::nchw_n16) {
    throw std::invalid_argument("quantize: floats are in planes or images16");
  }
}

Shape checked(const Shape& shape) {
  check_positions(shape);
  return shape;
}

// body(first block, end), in pieces that are worth a thread.
template <typename Body>
void for_blocks(ThreadPool& pool, const Shape& shape, const Body& body) {
  constexpr std::int64_t kPieceBytes = 65536;
  const std::int64_t blocks = block_count(shape);
  const std::int64_t piece = std::max<std::int64_t>(kPieceBytes / std::max<std::int64_t>(block_bytes(shape), 1), 1);
  pool.parallel_for(ceil_div(blocks, piece),
                    [&](std::int64_t task) { body(task * piece, std::min(blocks, (task + 1) * piece)); });
}

void quantize_all(ThreadPool& pool, const Shape& shape, Layout source, Quantization quantization,
                  const Int8Kernels& kernels, const float* in, float* out) {
  auto* const bytes = reinterpret_cast<std::uint8_t*>(out);
  const std::int64_t pixels = shape.h * shape.w;
  for_blocks(pool, shape, [&](std::int64_t first, std::int64_t end) {
    PlainPositions positions(shape, source);
    for (std::int64_t block = first; block < end;) {
      // Those of one image follow each other.
      const std::int64_t whole = (pixels - block * kQuadBlock % pixels) / kQuadBlock;
      const std::int64_t blocks = source == Layout::nchw ? std::clamp<std::int64_t>(whole, 1, end - block) : 1;
      kernels.quantize({.in = in,
                        .first = positions.block(block),
                        .blocks = blocks,
                        .scale = quantization.scale,
                        .zero_point = static_cast<float>(quantization.zero_point),
                        .out = bytes + block * block_bytes(shape),
                        .out_step = block_bytes(shape)});
      block += blocks;
    }
  });
}

// As ONNX defines DynamicQuantizeLinear for u8.
DynamicScale dynamic_scale(float least, float most) {
  const float scale = (most - least) / 255.0F;
  if (!(scale > 0)) return {.scale = 1, .zero_point = 0};
  if (!std::isfinite(scale)) return {.scale = scale, .zero_point = 0};  // so that no result is a number either
  const float zero_point = std::nearbyint(std::clamp(0.0F - least / scale, 0.0F, 255.0F));
  return {.scale = scale, .zero_point = static_cast<std::int32_t>(zero_point)};
}

}  // namespace

DynamicScale read_dynamic_scale(const float* dynamic_quads) {
  DynamicScale found;
  std::memcpy(&found, dynamic_quads, sizeof(found));
  return found;
}

Quantize::Quantize(Quantization quantization, Layout source, const Int8Kernels& kernels)
    : quantization_(quantization), source_(source), kernels_(kernels) {
  check_scale(quantization.scale);
  check_floats(source);
}

Shape Quantize::output_shape(const Shape& in) const { return checked(in); }

void Quantize::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  quantize_all(pool, shape, source_, quantization_, kernels_, in, out);
}

Shape DynamicQuantize::output_shape(const Shape& in) const { return checked(in); }

void DynamicQuantize::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  // Lanes of no image may hold anything: whole groups of images are pieces of one run, the last one has its own.
  const std::int64_t whole_images = source_ == Layout::nchw ? shape.n : shape.n / kLanes * kLanes;
  const std::int64_t vectors = shape.c * shape.h * shape.w;
  const std::int64_t count = whole_images * vectors;
  constexpr std::int64_t kPiece = 16384;
  constexpr std::int64_t kVectors = kPiece / kLanes;
  const std::int64_t pieces = ceil_div(count, kPiece);
  const std::int64_t last_pieces = whole_images < shape.n ? ceil_div(vectors, kVectors) : 0;
  // Of 0 as well, as ONNX has it.
  std::vector<float> least(static_cast<std::size_t>(pieces + last_pieces) + 1);
  std::vector<float> most(least.size());
  pool.parallel_for(pieces + last_pieces, [&](std::int64_t piece) {
    const auto at = static_cast<std::size_t>(piece);
    if (piece < pieces) {
      kernels_.extremes(in + piece * kPiece, std::min(kPiece, count - piece * kPiece), least[at], most[at]);
      return;
    }
    const std::int64_t first = (piece - pieces) * kVectors;
    kernels_.extremes_of_lanes(in + count + first * kLanes, std::min(kVectors, vectors - first), shape.n - whole_images,
                               least[at], most[at]);
  });
  const DynamicScale found =
      dynamic_scale(*std::min_element(least.begin(), least.end()), *std::max_element(most.begin(), most.end()));
  std::fill_n(out, kDynamicWords, 0.0F);
  std::memcpy(out, &found, sizeof(found));
  const Quantization quantization{found.scale, static_cast<std::uint8_t>(found.zero_point)};
  quantize_all(pool, shape, source_, quantization, kernels_, in, out + kDynamicWords);
}

Dequantize::Dequantize(Quantization quantization, Layout target, const Int8Kernels& kernels)
    : quantization_(quantization), target_(target), kernels_(kernels) {
  check_scale(quantization.scale);
  check_floats(target);
}

Shape Dequantize::output_shape(const Shape& in) const { return checked(in); }

void Dequantize::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  if (target_ == Layout::nchw_n16) clear_idle_lanes(shape, out);
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(in);
  for_blocks(pool, shape, [&](std::int64_t first, std::int64_t end) {
    PlainPositions positions(shape, target_);
    for (std::int64_t block = first; block < end; ++block) {
      kernels_.dequantize_bytes(bytes + block * block_bytes(shape), positions.block(block), quantization_.scale,
                                quantization_.zero_point, out);
    }
  });
}

Shape ReorderBytes::output_shape(const Shape& in) const { return checked(in); }

void ReorderBytes::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const std::uint8_t flip = is_signed_ ? 0x80 : 0;
  const auto* const from = reinterpret_cast<const std::uint8_t*>(in);
  auto* const to = reinterpret_cast<std::uint8_t*>(out);
  for_blocks(pool, shape, [&](std::int64_t first, std::int64_t end) {
    PlainPositions positions(shape, Layout::bytes);
    for (std::int64_t block = first; block < end; ++block) {
      const std::ptrdiff_t at = block * block_bytes(shape);
      if (to_quads_) {
        kernels_.from_bytes(from, positions.block(block), flip, to + at);
      } else {
        kernels_.to_bytes(from + at, positions.block(block), flip, to);
      }
    }
  });
}

}  // namespace sift::cpu
