// Lists of live quads times blocks of operands.
#pragma once

#include "simd/int8/kernel_table.h"
#include "simd/int8/lanes.h"

namespace sift::cpu::SIFT_ISA {

// One row, `Blocks` blocks from `first` on.
template <int Blocks>
[[gnu::always_inline]] inline void row_of_quads(const QuadRowsArgs& args, std::int64_t row, std::int64_t first) {
  constexpr int kVecs = Blocks * kWordVecs;
  Ints sums[kVecs];
#pragma GCC unroll 32
  for (int v = 0; v < kVecs; ++v) sums[v] = args.bias[row] - Ints{};
  [[maybe_unused]] Ints total{};
  const std::uint8_t* const panel = args.panel + first * args.block_bytes;
  for (std::uint32_t i = args.starts[row]; i < args.starts[row + 1]; ++i) {
    const std::uint8_t* const operands = panel + std::size_t{args.columns[i]} * kBlockBytes;
    const Words weights = splat(args.quads[i]);
    if constexpr (kOperandShift != 0) total = add_weights(total, weights);
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) {
      const std::uint8_t* const at = operands + v / kWordVecs * args.block_bytes + v % kWordVecs * kWordBytes;
      sums[v] = dot(sums[v], load_words(at), weights);
    }
  }
  if constexpr (kOperandShift != 0) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) sums[v] += total * kOperandShift;
  }
  std::int32_t* const out = args.sums + (first * args.group_rows + row - args.row_begin) * kQuadBlock;
#pragma GCC unroll 32
  for (int v = 0; v < kVecs; ++v) {
    store_words(out + v / kWordVecs * args.group_rows * kQuadBlock + v % kWordVecs * kWordLanes,
                reinterpret_cast<Words>(sums[v]));
  }
}

// As many blocks at once as there are left, up to kTileBlocks.
template <int Blocks>
void some_blocks(const QuadRowsArgs& args, std::int64_t first) {
  for (std::int64_t row = args.row_begin; row < args.row_end; ++row) row_of_quads<Blocks>(args, row, first);
}

template <int Blocks = kTileBlocks>
void last_blocks(const QuadRowsArgs& args, std::int64_t first, std::int64_t count) {
  if (count == Blocks) return some_blocks<Blocks>(args, first);
  if constexpr (Blocks > 1) last_blocks<Blocks - 1>(args, first, count);
}

inline void rows(const QuadRowsArgs& args) {
  std::int64_t first = 0;
  for (; args.blocks - first > kTileBlocks; first += kTileBlocks) some_blocks<kTileBlocks>(args, first);
  last_blocks(args, first, args.blocks - first);
}

}  // namespace sift::cpu::SIFT_ISA
