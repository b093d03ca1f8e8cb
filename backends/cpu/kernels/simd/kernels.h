// Every kernel template, for the translation unit of one instruction set. Defines `kernels()` in its namespace.
#pragma once

#include "../kernel_table.h"
#include "attention.h"
#include "dense_tile.h"
#include "elementwise.h"
#include "epilogue.h"
#include "gather.h"
#include "narrow_rows.h"
#include "normalize.h"
#include "peak.h"
#include "pool_tile.h"
#include "reorder.h"
#include "rotated_rows.h"
#include "rows.h"
#include "stream.h"
#include "window.h"
#include "winograd.h"

namespace sift::cpu::SIFT_ISA {

const KernelTable* kernels();
const KernelTable* kernels() {
  static constexpr KernelTable kTable{
      .rows = &find_rows,
      .rows_side_by_side = &find_rows_side_by_side,
      .rotated_rows = &find_rotated_rows,
      .narrow_rows = &find_narrow_rows,
      .narrow_rows_side_by_side = &find_narrow_rows_side_by_side,
      .vec_bytes = kVecBytes,
      .runs_generated = kRunsGenerated,
      .pair_above = kPairAbove,
      .gather_full = &gather_full,
      .gather_masked = &gather_masked,
      .end_streams = &end_streams,
      .epilogue = &epilogue,
      .interleave = &interleave,
      .deinterleave = &deinterleave,
      .window = &window,
      .elementwise = &elementwise,
      .stream = &stream,
      .normalize_row = &normalize_row,
      .normalize_lanes = &normalize_lanes,
      .winograd_input = &winograd_input,
      .winograd_rows = &winograd_rows,
      .pool_tile = &pool_tile,
      .dense_tile = &dense_tile,
      .dense_rows = kDenseRows,
      .combine = &combine,
      .lane_magnitudes = &lane_magnitudes,
      .dense_finish = &dense_finish,
      .attend = [](const AttentionArgs& args) { attend(args); },
      .most_query_blocks = kMostQueryBlocks,
      .split_pairs = &split_pairs,
      .fma_loop = &fma_loop,
      .fma_load_loop = &fma_load_loop,
      .peak_flops = kPeakFlops,
  };
  return &kTable;
}

}  // namespace sift::cpu::SIFT_ISA
