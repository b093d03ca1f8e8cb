// The sums of a micro-kernel, in registers. A tile is Rows x Cols blocks of a panel in the first-level cache; its rows
// are `pitch` bytes apart in the panel.
#pragma once

#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Registers for accumulators. Weights need some, and so do operands if instructions cannot read them from memory.
inline constexpr int kAccumulators = kRegisters - (kMemoryOperands ? 2 : 4);

// A row with this many sums hides the latency of multiply-adds. With fewer, rows use sell, or several sums per output.
inline constexpr int kEnoughSums = 7;

// Calls use(v, operand) for every vector of the tile at `base`; each operand is read once.
template <int Rows, int Cols, typename Use>
[[gnu::always_inline]] inline void for_each_vec(const std::byte* base, std::ptrdiff_t pitch, Use use) {
  constexpr int kVecsPerRow = Cols * kVecsPerBlock;
#pragma GCC unroll 2
  for (int row = 0; row < Rows; ++row) {
    const std::byte* const from = own_register(base + row * pitch);
#pragma GCC unroll 32
    for (int v = 0; v < kVecsPerRow; ++v) use(row * kVecsPerRow + v, load(from + v * kVecBytes));
  }
}

template <int Rows, int Cols>
struct Tile {
  static constexpr int kVecsPerRow = Cols * kVecsPerBlock;
  static constexpr int kVecs = Rows * kVecsPerRow;
  static constexpr int kFloats = kVecs * kVecLanes;
  static constexpr int kRowBlocks = Rows == 1 ? Cols : 1;  // contiguous blocks in the panel
  using V = Vec;

  Vec vec[kVecs];

  [[gnu::always_inline]] void load_from(const float* at) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) vec[v] = load(at + v * kVecLanes);
  }
  [[gnu::always_inline]] void fill(float value) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) vec[v] = splat(value);
  }
  [[gnu::always_inline]] void store_to(float* at) const {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) store(at + v * kVecLanes, vec[v]);
  }
  [[gnu::always_inline]] void clear() { fill(0.0F); }
  [[gnu::always_inline]] void start(const float* bias, std::uint32_t row, const float* at) {
    if (bias != nullptr) {
      fill(bias[row]);
    } else {
      load_from(at);
    }
  }
  // Adds what `start` would have loaded.
  [[gnu::always_inline]] void add(const float* bias, std::uint32_t row, const float* at) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) vec[v] += bias != nullptr ? splat(bias[row]) : load(at + v * kVecLanes);
  }
  [[gnu::always_inline]] void multiply_add(Vec weight, const std::byte* operands, std::ptrdiff_t pitch) {
    for_each_vec<Rows, Cols>(operands, pitch, [&](int v, Vec x) { vec[v] += weight * x; });
  }
  [[gnu::always_inline]] void multiply_add(float weight, const std::byte* operands, std::ptrdiff_t pitch) {
    multiply_add(splat(weight), operands, pitch);
  }
  // `row` is relative to the first row of acc and of the direct output.
  [[gnu::always_inline]] void finish(const RowsArgs& args, std::size_t row) {
    const DirectOutput& direct = args.direct;
    if (direct.out == nullptr) return store_to(args.acc + row * kVecs * kVecLanes);
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * direct.row_stride;
    if (direct.residual != nullptr) {
      for_each_place(direct.residual + at, direct, [&](int v, const float* from) { vec[v] += load_unaligned(from); });
    }
    const Vec low = splat(direct.low);
    const Vec high = splat(direct.high);
    if (direct.non_temporal) {
      for_each_place(direct.out + at, direct,
                     [&](int v, float* to) { store_non_temporal(to, min(max(vec[v], low), high)); });
    } else {
      for_each_place(direct.out + at, direct,
                     [&](int v, float* to) { store_unaligned(to, min(max(vec[v], low), high)); });
    }
  }

 private:
  template <typename Float, typename Use>
  [[gnu::always_inline]] static void for_each_place(Float* at, const DirectOutput& direct, Use use) {
#pragma GCC unroll 2
    for (int row = 0; row < Rows; ++row, at += direct.pitch) {
      Float* block = at;
#pragma GCC unroll 16
      for (int col = 0; col < Cols; ++col, block += direct.step) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecsPerBlock; ++v) {
          use((row * Cols + col) * kVecsPerBlock + v, block + v * kVecLanes);
        }
      }
    }
  }
};

}  // namespace sift::cpu::SIFT_ISA
