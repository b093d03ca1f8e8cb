// The functions that exist once per instruction set.
//
// The translation units behind a table are compiled with features that the machine may lack. They share only these
// plain structures with the rest. If both sides instantiated an inline function of the standard library, the linker
// could keep its AVX-512 version, and portable code would call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "simd/arguments/copies.h"
#include "simd/arguments/dense_products.h"
#include "simd/arguments/operators.h"
#include "simd/arguments/rows.h"
#include "simd/arguments/weight_gradient.h"
#include "simd/arguments/windows.h"
#include "simd/packed/row_kernels.h"
#include "simd/train/lane_kernels.h"

namespace sift::cpu {

// Half of a small first-level cache.
inline constexpr int kLoopOperands = 4096;

// Kernels that store in every step take their arguments by value. With a reference, each store might change them as far
// as the compiler knows, and it would read them again. Rows and streams store once per list, and copies would take
// longer.
struct KernelTable {
  // The kernel for csr, csr_pairs or dense, and a tile of `rows` x `columns` blocks; null if the registers do not hold
  // it. The blocks of a tile row are contiguous in the panel.
  RowsFunction (*rows)(WeightForm form, int rows, int columns);
  // The sell kernel for tiles whose sums are too few for one row at a time; null for others. For these tiles, `rows` is
  // null.
  SellRows (*sell_rows)(int rows, int columns);
  // For csr_by_tap and one row of blocks: the operands of a list are rotated by a few lanes before they are multiplied.
  // Null if rotating takes longer than it saves.
  RowsFunction (*rotated_rows)(int columns);
  // For one row of blocks of 8 lanes; each number of blocks has one of the two. If taps overlap, blocks are 64 bytes
  // apart and operands are not aligned.
  RowsFunction (*narrow_rows)(int blocks, bool taps_overlap);
  SellRows (*narrow_sell_rows)(int blocks, bool taps_overlap);
  int vec_bytes;  // of a register
  // Whether generated code may use this instruction set's registers.
  bool runs_generated;
  // Density from which csr_pairs is faster than csr.
  double pair_above;
  void (*gather_full)(GatherArgs);  // every lane of every entry is copied
  void (*gather_masked)(GatherArgs);
  void (*end_non_temporal_stores)();  // call before other threads read the stored values
  void (*epilogue)(EpilogueArgs);

  // out[i][lane] = in[lane * stride + i] for i < count, lanes from `rows` on zero; and back, for `rows` lanes. With
  // non-temporal stores out and what is written of it row by row are aligned to 64 bytes.
  void (*interleave)(const float* in, std::ptrdiff_t stride, std::int64_t count, int rows, float* out,
                     bool non_temporal);
  void (*deinterleave)(const float* in, std::ptrdiff_t stride, std::int64_t count, int rows, float* out,
                       bool non_temporal);

  void (*rearrange)(RearrangeArgs);

  void (*window)(WindowKind kind, WindowArgs);
  std::int64_t largest_square;                               // see WindowArgs
  void (*masked_window)(WindowKind kind, MaskedWindowArgs);  // null if the instruction set has no masks
  void (*strided_window)(StridedWindowArgs);                 // likewise
  void (*strided_maximum)(StridedMaximumArgs);               // likewise
  void (*elementwise)(ElementwiseArgs);
  void (*stream)(const StreamArgs&);
  void (*normalize_row)(NormalizeArgs);    // x [channels]
  void (*normalize_lanes)(NormalizeArgs);  // x [channels], 16 lanes each by itself

  // 6 x 6 pixels of each phase, [phases][36][16], to their points, [36][phases][16].
  void (*winograd_tiles)(const WinogradTilesArgs&);
  void (*winograd_input)(const float* patch, std::int64_t phases, float* points);
  void (*winograd_rows)(const WinogradArgs&);
  void (*pool_tile)(PoolArgs);

  void (*dense_tile)(const DenseTileArgs&);
  std::int64_t dense_rows;
  void (*combine)(CombineArgs);
  // The largest magnitude in each of 16 lanes of [count / 16][16], NaN if a value is not finite. All are aligned to 64
  // bytes.
  void (*lane_magnitudes)(const float* in, std::int64_t count, float* out);
  void (*dense_finish)(DenseFinishArgs);

  void (*attend)(const AttentionArgs&);
  // Keys and values in rows, each as many floats apart as its stride says.
  void (*attend_rows)(const AttentionArgs&);  // blocks of queries out of `panel`; the result is in `sums`
  void (*attend_row)(const AttentionArgs&);   // one query out of `panel`, [depth]
  std::int64_t most_query_blocks;

  LaneKernels lanes;

  // What every machine with this instruction set runs; see packed_row_kernels.
  PackedRowKernels packed_rows;

  void (*copy_rows)(CopyRowsArgs);
  // The even columns of each row to `to`, the odd ones to `odd`.
  void (*split_rows)(CopyRowsArgs, float* odd);

  void (*copy_blocks)(std::span<const BlockCopy> copies);
  void (*weight_gradient)(std::span<const GradientLine> lines, const GradientRun& run);
  int (*gradient_rows)(int slots);  // up to kMostGradientSlots

  // Only independent multiply-adds, `peak_flops` operations per iteration.
  float (*fma_loop)(std::int64_t iterations);
  // The same, with an operand of each out of `operands`, kLoopOperands floats aligned to 64 bytes.
  float (*fma_load_loop)(const float* operands, std::int64_t iterations);
  std::int64_t peak_flops;
};

// Null if this build has no kernels for the instruction set.
const KernelTable* find_kernels(const char* isa);

// Those of `kernels`, with instructions beyond avx512 up to `most` where that is its instruction set and this machine
// has them.
const PackedRowKernels& packed_row_kernels(const KernelTable& kernels, Extension most);

}  // namespace sift::cpu
