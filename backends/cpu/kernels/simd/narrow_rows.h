// Sparse rows times a panel whose blocks are 8 lanes: for images whose rows would leave half of 16 lanes without a pixel.
#pragma once

#include "../kernel_table.h"
#include "rows.h"
#include "vec.h"

namespace sift::cpu::SIFT_ISA {

inline constexpr int kNarrowBlock = 8;
inline constexpr int kNarrowBytes = kVecBytes < 32 ? kVecBytes : 32;
typedef float NarrowVec __attribute__((vector_size(kNarrowBytes), may_alias));

// Sums of one row of so many blocks.
template <int Blocks>
struct NarrowTile {
  using V = NarrowVec;
  static constexpr int kFloats = Blocks * kNarrowBlock;
  static constexpr int kLanes = kNarrowBytes / 4;
  static constexpr int kVecs = kFloats / kLanes;

  V vec[kVecs];

  [[gnu::always_inline]] void start(const float* bias, std::uint32_t row, const float* acc) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) {
      vec[v] = bias != nullptr ? bias[row] - V{} : *reinterpret_cast<const V*>(acc + v * kLanes);
    }
  }
  [[gnu::always_inline]] void multiply_add(V weight, const std::byte* operands, std::ptrdiff_t) {
    const std::byte* const from = own_register(operands);
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) vec[v] += weight * *reinterpret_cast<const V*>(from + v * kNarrowBytes);
  }
  [[gnu::always_inline]] void multiply_add(float weight, const std::byte* operands, std::ptrdiff_t pitch) {
    multiply_add(weight - V{}, operands, pitch);
  }
  // Rows of few lanes are never stored directly.
  [[gnu::always_inline]] void finish(const RowsArgs& args, std::size_t row) const {
    float* const acc = args.acc + row * kFloats;
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) *reinterpret_cast<V*>(acc + v * kLanes) = vec[v];
  }
};

// Two rows side by side where the registers hold the sums of both: ends are foreseen more often, and there are half as
// many of them.
template <int Blocks = 1>
RowsFunction find_narrow_rows_side_by_side(int blocks) {
  if constexpr (Blocks <= 14 && 2 * NarrowTile<Blocks>::kVecs <= kAccumulators) {
    if (blocks != Blocks) return find_narrow_rows_side_by_side<Blocks + 1>(blocks);
    return &rows_side_by_side<NarrowTile<Blocks>>;
  } else {
    return nullptr;
  }
}

template <int Blocks = 1>
RowsFunction find_narrow_rows(int blocks) {
  constexpr int kVecs = NarrowTile<Blocks>::kVecs;
  if constexpr (Blocks <= 14 && kVecs <= kAccumulators) {
    if constexpr (2 * kVecs > kAccumulators) {
      if (blocks == Blocks) return &rows_single<NarrowTile<Blocks>>;
    }
    return find_narrow_rows<Blocks + 1>(blocks);
  } else {
    return nullptr;
  }
}

}  // namespace sift::cpu::SIFT_ISA
