// Positions of quads, those of all images one after the other: where they lie in plain tensors, and what windows read
// around them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "simd/int8/kernel_table.h"

namespace sift::cpu {

inline std::int64_t position_count(const Shape& shape) { return shape.n * shape.h * shape.w; }
inline std::int64_t block_count(const Shape& shape) { return ceil_div(position_count(shape), kQuadBlock); }
inline std::int64_t quad_count(const Shape& shape) { return ceil_div(shape.c, kQuad); }
// Bytes from one block of positions to the next.
inline std::int64_t block_bytes(const Shape& shape) { return quad_count(shape) * kBlockBytes; }

// Throws std::invalid_argument where positions do not fit in 32 bits.
void check_positions(const Shape& shape);

// Where a block's positions are in a tensor of another layout: nchw, nchw_n16 or bytes.
class PlainPositions {
 public:
  PlainPositions(const Shape& shape, Layout layout) : shape_(shape), layout_(layout) {}

  // Valid until the next call.
  PlainBlock block(std::int64_t number);

 private:
  Shape shape_;
  Layout layout_;
  std::int64_t lanes_[kQuadBlock] = {};
};

// Zeros in the lanes of nchw_n16 that belong to no image.
void clear_idle_lanes(const Shape& shape, float* out);

// What the taps of a window read at each block of output positions.
class WindowReader {
 public:
  WindowReader(const ConvGeometry& geometry, const Shape& in, const Shape& out);

  std::int64_t taps() const { return static_cast<std::int64_t>(tap_ys_.size()); }
  // [taps][quads][16][4] of one block, aligned to 64 bytes.
  void read(const Int8Kernels& kernels, const std::uint8_t* in, std::uint8_t fill, std::int64_t block,
            std::uint8_t* out) const;
  // The maxima of the taps, [quads][16][4]; `taps` is scratch memory for what `read` gives.
  void read_maxima(const Int8Kernels& kernels, const std::uint8_t* in, std::int64_t block, std::uint8_t* taps,
                   std::uint8_t* out) const;

 private:
  // What the taps of a block's lanes read from.
  struct Lanes {
    std::int32_t positions[kQuadBlock];
    std::int32_t ys[kQuadBlock];
    std::int32_t xs[kQuadBlock];
  };
  void find(std::int64_t block, Lanes& lanes) const;
  GatherTapsArgs taps_of(const Lanes& lanes, const std::uint8_t* in, std::uint8_t fill, std::uint8_t* out) const;

  ConvGeometry geometry_;
  Shape in_;
  Shape out_;
  std::vector<std::int32_t> tap_ys_;
  std::vector<std::int32_t> tap_xs_;
};

}  // namespace sift::cpu
