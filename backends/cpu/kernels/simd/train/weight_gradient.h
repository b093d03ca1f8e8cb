// Sums of products of the output's gradient and the input, one per active weight; see
// train/weight_gradient/weight_gradient.h.
//
// The sums of a block, rows x slots, are in registers while the positions of a tile go by: each position takes a load
// per row, and a multiply-add with an operand in memory per sum. Which lane a product is summed in does not matter, so
// that a block of 16 lanes is as many positions as it has vectors.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

inline void copy_blocks(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    float* to = copy.to;
    if (copy.from == nullptr) {
      for (std::int64_t i = 0; i < copy.count; ++i, to += copy.to_step) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecsPerBlock; ++v) store(to + v * kVecLanes, Vec{});
      }
      continue;
    }
    const float* from = copy.from;
    for (std::int64_t i = 0; i < copy.count; ++i, from += copy.from_step, to += copy.to_step) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) store(to + v * kVecLanes, load(from + v * kVecLanes));
    }
  }
}

inline constexpr int kGradientSums = kRegisters == 32 ? 27 : 12;
static_assert(kGradientSums >= kMostGradientSlots);

constexpr int gradient_rows_of(int slots) {
  const int rows = kGradientSums / slots;
  return rows > 8 ? 8 : rows;
}
inline int gradient_rows(int slots) { return gradient_rows_of(slots); }

// Lane i of the result is the sum of all lanes of vectors[i]. Each step halves the number of vectors: of a pair, the
// lanes whose number has the bit `Step` go on with the second one.
template <int Step>
struct FoldLanes {
  alignas(64) std::int32_t straight[kVecLanes]{};
  alignas(64) std::int32_t crossed[kVecLanes]{};

  constexpr FoldLanes() {
    for (int lane = 0; lane < kVecLanes; ++lane) {
      const bool second = (lane & Step) != 0;
      straight[lane] = second ? kVecLanes + lane : lane;
      crossed[lane] = second ? kVecLanes + (lane ^ Step) : lane ^ Step;
    }
  }
};
template <int Step>
inline constexpr FoldLanes<Step> kFoldLanes;

template <int Step>
[[gnu::always_inline]] inline Vec fold_lanes(Vec* vectors) {
#pragma GCC unroll 16
  for (int i = 0; i < Step; ++i) {
    const Vec a = vectors[i];
    const Vec b = vectors[i + Step];
    vectors[i] = shuffle(a, b, kFoldLanes<Step>.straight) + shuffle(a, b, kFoldLanes<Step>.crossed);
  }
  if constexpr (Step > 1) return fold_lanes<Step / 2>(vectors);
  return vectors[0];
}

// Adds the products of `Vecs` adjacent vectors of operands. An offset is read once for all of them.
template <int Rows, int Slots, int Vecs>
[[gnu::always_inline]] inline void add_products(const float* x, const float* dy, const std::uint32_t* offsets,
                                                const std::uint32_t* rows, Vec* sums) {
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const float* const gradient = dy + rows[r];
    Vec g[Vecs];
#pragma GCC unroll 4
    for (int v = 0; v < Vecs; ++v) g[v] = load(gradient + v * kVecLanes);
#pragma GCC unroll 12
    for (int s = 0; s < Slots; ++s) {
      const float* const operand = x + offsets[r * Slots + s];
#pragma GCC unroll 4
      for (int v = 0; v < Vecs; ++v) sums[r * Slots + s] += g[v] * load(operand + v * kVecLanes);
    }
  }
}

template <int Slots>
void gradient_blocks(std::span<const GradientLine> lines, const GradientRun& run) {
  constexpr int kRows = gradient_rows_of(Slots);
  constexpr int kSums = kRows * Slots;
  constexpr int kVectors = (kSums + kVecLanes - 1) / kVecLanes;
  constexpr int kUnrolled = kVecsPerBlock == 1 ? 2 : 1;  // blocks
  const std::uint32_t* offsets = run.offsets;
  const std::uint32_t* rows = run.rows;
  float* out = run.sums;
  for (std::uint32_t block = 0; block < run.blocks; ++block, offsets += kSums, rows += kRows) {
    Vec sums[kVectors * kVecLanes]{};
    for (const GradientLine& line : lines) {
      const float* x = line.x;
      const float* dy = line.dy;
      std::uint64_t left = line.count;
      // Offsets come from the list each time: kept over the loop, more of them than registers hold, they would be
      // copied to the stack and read from there.
#pragma GCC unroll 1
      for (; left >= kUnrolled; left -= kUnrolled, dy += kUnrolled * kBlock, x += kUnrolled * kBlock) {
        add_products<kRows, Slots, kUnrolled * kVecsPerBlock>(x, dy, own_register(offsets), own_register(rows), sums);
      }
      if constexpr (kUnrolled > 1) {
        if (left > 0) add_products<kRows, Slots, kVecsPerBlock>(x, dy, own_register(offsets), own_register(rows), sums);
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v, out += kVecLanes) {
      store(out, load(out) + fold_lanes<kVecLanes / 2>(sums + v * kVecLanes));
    }
    out += (kBlock - kVectors * kVecLanes % kBlock) % kBlock;
  }
}

inline void weight_gradient(std::span<const GradientLine> lines, const GradientRun& run) {
  using Blocks = void (*)(std::span<const GradientLine>, const GradientRun&);
  static constexpr auto kBySlots = []<int... Less>(std::integer_sequence<int, Less...>) {
    struct Table {
      Blocks of[kMostGradientSlots];
    };
    return Table{{&gradient_blocks<Less + 1>...}};
  }(std::make_integer_sequence<int, kMostGradientSlots>{});
  kBySlots.of[run.slots - 1](lines, run);
}

}  // namespace sift::cpu::SIFT_ISA
