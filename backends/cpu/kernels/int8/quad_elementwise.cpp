#include "int8/quad_elementwise.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/thread_pool.h"
#include "int8/positions.h"

namespace sift::cpu {
namespace {

// body(first byte, bytes), in pieces of whole blocks.
template <typename Body>
void for_pieces(ThreadPool& pool, const Shape& shape, const Body& body) {
  constexpr std::int64_t kPiece = 16384;
  const std::int64_t bytes = block_count(shape) * block_bytes(shape);
  pool.parallel_for(ceil_div(bytes, kPiece),
                    [&](std::int64_t piece) { body(piece * kPiece, std::min(kPiece, bytes - piece * kPiece)); });
}

}  // namespace

void QuadAdd::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  if (others.second == nullptr) throw std::invalid_argument("quad add: there is no second operand");
  const auto* const a = reinterpret_cast<const std::uint8_t*>(in);
  const auto* const b = reinterpret_cast<const std::uint8_t*>(others.second);
  auto* const to = reinterpret_cast<std::uint8_t*>(out);
  for_pieces(pool, shape, [&](std::int64_t at, std::int64_t bytes) {
    kernels_.add({.a = a + at,
                  .b = b + at,
                  .out = to + at,
                  .blocks = bytes / kBlockBytes,
                  .addition = addition_,
                  .low = static_cast<float>(low_),
                  .high = static_cast<float>(high_)});
  });
}

void QuadTable::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const auto* const from = reinterpret_cast<const std::uint8_t*>(in);
  auto* const to = reinterpret_cast<std::uint8_t*>(out);
  for_pieces(pool, shape,
             [&](std::int64_t at, std::int64_t bytes) { kernels_.look_up(from + at, table_.data(), bytes, to + at); });
}

QuadChannels::QuadChannels(std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t total)
    : begin_(begin), end_(end), first_(first), total_(total) {
  if (begin < 0 || end < begin || first < 0 || total < 0 || end - begin > total - first) {
    throw std::invalid_argument("quad channels: the output has no room for these channels");
  }
}

Shape QuadChannels::output_shape(const Shape& in) const {
  if (in.c < end_) throw std::invalid_argument("quad channels: the input has not as many channels");
  return {in.n, total_, in.h, in.w};
}

void QuadChannels::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const auto* const from = reinterpret_cast<const std::uint8_t*>(in);
  auto* const to = reinterpret_cast<std::uint8_t*>(out);
  const std::ptrdiff_t in_step = block_bytes(shape);
  const std::ptrdiff_t out_step = block_bytes(output_shape(shape));
  const auto place = [](std::int64_t channel) { return channel / kQuad * kBlockBytes + channel % kQuad; };
  // Whole quads go to whole quads; those past the last channel of a tensor that is copied to its end hold any value.
  const bool whole = begin_ % kQuad == 0 && first_ % kQuad == 0;
  const std::int64_t count = end_ - begin_;
  const std::int64_t quads = !whole ? 0 : first_ + count == total_ ? ceil_div(count, kQuad) : count / kQuad;
  pool.parallel_for(block_count(shape), [&](std::int64_t block) {
    const std::uint8_t* const source = from + block * in_step;
    std::uint8_t* const target = to + block * out_step;
    if (quads > 0) {
      std::memcpy(target + place(first_), source + place(begin_), static_cast<std::size_t>(quads * kBlockBytes));
    }
    for (std::int64_t channel = quads * kQuad; channel < count; ++channel) {
      const std::uint8_t* const bytes = source + place(begin_ + channel);
      std::uint8_t* const places = target + place(first_ + channel);
      for (std::int64_t lane = 0; lane < kQuadBlock; ++lane) places[lane * kQuad] = bytes[lane * kQuad];
    }
  });
}

}  // namespace sift::cpu
