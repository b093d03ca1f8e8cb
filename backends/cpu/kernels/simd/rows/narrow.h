// Sparse rows times a panel with blocks of 8 lanes, for images whose rows would leave half of 16 lanes idle.
#pragma once

#include "simd/kernel_table.h"
#include "simd/rows/csr.h"
#include "simd/rows/sell.h"
#include "simd/rows/tile.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

inline constexpr int kNarrowBlock = 8;
inline constexpr int kNarrowBytes = kVecBytes < 32 ? kVecBytes : 32;
typedef float NarrowVec __attribute__((vector_size(kNarrowBytes), may_alias));
typedef float UnalignedNarrowVec __attribute__((vector_size(kNarrowBytes), aligned(4), may_alias));

// Sums of one row of this many blocks. If taps overlap, operands begin anywhere in the first half of 64 bytes.
template <int Blocks, bool TapsOverlap>
struct NarrowTile {
  using V = NarrowVec;
  static constexpr int kFloats = Blocks * kNarrowBlock;
  static constexpr int kRowBlocks = 1;  // lists are made for the whole tile
  static constexpr int kLanes = kNarrowBytes / 4;
  static constexpr int kVecs = kFloats / kLanes;
  static constexpr int kVecsPerBlock = kNarrowBlock / kLanes;
  static constexpr int kBlockBytes = TapsOverlap ? 64 : 32;

  V vec[kVecs];

  [[gnu::always_inline]] void start(const float* bias, std::uint32_t row, const float* acc) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) {
      vec[v] = bias != nullptr ? bias[row] - V{} : *reinterpret_cast<const V*>(acc + v * kLanes);
    }
  }
  [[gnu::always_inline]] void clear() {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) vec[v] = V{};
  }
  [[gnu::always_inline]] void add(const float* bias, std::uint32_t row, const float* acc) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) {
      vec[v] += bias != nullptr ? bias[row] - V{} : *reinterpret_cast<const V*>(acc + v * kLanes);
    }
  }
  [[gnu::always_inline]] void multiply_add(V weight, const std::byte* operands, std::ptrdiff_t) {
    const std::byte* const from = own_register(operands);
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) {
      const std::byte* const at = from + v / kVecsPerBlock * kBlockBytes + v % kVecsPerBlock * kNarrowBytes;
      if constexpr (TapsOverlap) {
        vec[v] += weight * *reinterpret_cast<const UnalignedNarrowVec*>(at);
      } else {
        vec[v] += weight * *reinterpret_cast<const V*>(at);
      }
    }
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

// sell if the registers hold the sums of two rows: there are fewer ends of lists, and more of them are predicted.
template <bool TapsOverlap, int Blocks = 1>
SellRows narrow_sell_rows_of(int blocks) {
  using Sums = NarrowTile<Blocks, TapsOverlap>;
  if constexpr (Blocks <= 14 && 2 * Sums::kVecs <= kAccumulators) {
    if (blocks != Blocks) return narrow_sell_rows_of<TapsOverlap, Blocks + 1>(blocks);
    return sell_rows_of<Sums>();
  } else {
    return {};
  }
}

template <bool TapsOverlap, int Blocks = 1>
RowsFunction narrow_rows_of(int blocks) {
  using Sums = NarrowTile<Blocks, TapsOverlap>;
  if constexpr (Blocks <= 14 && Sums::kVecs <= kAccumulators) {
    if constexpr (2 * Sums::kVecs > kAccumulators) {
      if (blocks == Blocks) return &rows_csr<Sums>;
    }
    return narrow_rows_of<TapsOverlap, Blocks + 1>(blocks);
  } else {
    return nullptr;
  }
}

inline SellRows find_narrow_sell_rows(int blocks, bool taps_overlap) {
  return taps_overlap ? narrow_sell_rows_of<true>(blocks) : narrow_sell_rows_of<false>(blocks);
}

inline RowsFunction find_narrow_rows(int blocks, bool taps_overlap) {
  return taps_overlap ? narrow_rows_of<true>(blocks) : narrow_rows_of<false>(blocks);
}

}  // namespace sift::cpu::SIFT_ISA
