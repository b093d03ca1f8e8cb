// Every kernel template, for the translation unit of one instruction set. Defines `kernels()` in its namespace.
#pragma once

#include "simd/attention.h"
#include "simd/cached_attention.h"
#include "simd/dense_tile.h"
#include "simd/elementwise.h"
#include "simd/epilogue.h"
#include "simd/gather.h"
#include "simd/kernel_table.h"
#include "simd/masked_window.h"
#include "simd/normalize.h"
#include "simd/packed/fill_in.h"
#include "simd/packed/list.h"
#include "simd/packed/multiply.h"
#include "simd/peak.h"
#include "simd/pool_tile.h"
#include "simd/rearrange.h"
#include "simd/reorder.h"
#include "simd/rows/find.h"
#include "simd/rows/narrow.h"
#include "simd/rows/rotated.h"
#include "simd/rows/sell.h"
#include "simd/stream.h"
#include "simd/strided_window.h"
#include "simd/train/activation.h"
#include "simd/train/batch_norm.h"
#include "simd/train/batch_norm_pool.h"
#include "simd/train/depthwise.h"
#include "simd/train/lane_sums.h"
#include "simd/train/layer_norm.h"
#include "simd/train/max_pool.h"
#include "simd/train/weight_gradient.h"
#include "simd/window.h"
#include "simd/winograd.h"

namespace sift::cpu::SIFT_ISA {

const KernelTable* kernels();
const KernelTable* kernels() {
  static constexpr KernelTable kTable{
      .rows = &find_rows,
      .sell_rows = &find_sell_rows,
      .rotated_rows = &find_rotated_rows,
      .narrow_rows = &find_narrow_rows,
      .narrow_sell_rows = &find_narrow_sell_rows,
      .vec_bytes = kVecBytes,
      .runs_generated = kRunsGenerated,
      .pair_above = kPairAbove,
      .gather_full = &gather_full,
      .gather_masked = &gather_masked,
      .end_non_temporal_stores = &end_non_temporal_stores,
      .epilogue = &epilogue,
      .interleave = &interleave,
      .deinterleave = &deinterleave,
      .rearrange = &rearrange,
      .window = &window,
      .largest_square = kLargestSquare,
      .masked_window = kMaskedWindow,
      .strided_window = kStridedWindow,
      .strided_maximum = kStridedMaximum,
      .elementwise = &elementwise,
      .stream = &stream,
      .normalize_row = &normalize_row,
      .normalize_lanes = &normalize_lanes,
      .winograd_tiles = &winograd_tiles,
      .winograd_input = &winograd_input,
      .winograd_rows = &winograd_rows,
      .pool_tile = &pool_tile,
      .dense_tile = &dense_tile,
      .dense_rows = kDenseRows,
      .combine = &combine,
      .lane_magnitudes = &lane_magnitudes,
      .dense_finish = &dense_finish,
      .attend = [](const AttentionArgs& args) { attend(args); },
      .attend_rows = [](const AttentionArgs& args) { attend_rows(args); },
      .attend_row = &attend_row,
      .most_query_blocks = kMostQueryBlocks,
      .lanes = {.add_moments = &add_moments,
                .batch_norm = &batch_norm,
                .batch_norm_sums = &batch_norm_sums,
                .batch_norm_gradient = &batch_norm_gradient,
                .add_runs = &add_runs,
                .max_pool = &max_pool,
                .max_pool_gradient = &max_pool_gradient,
                .depthwise = &depthwise,
                .depthwise_gradient = &depthwise_gradient,
                .batch_norm_pool = &batch_norm_pool,
                .batch_norm_pool_gradient = &batch_norm_pool_gradient,
                .layer_norm = &layer_norm,
                .layer_norm_gradient = &layer_norm_gradient,
                .activation = &lane_activation},
      .packed_rows = {.operands = &natural_operands,
                      .multiply = &multiply_parts<&multiply_packed>,
                      .list = &list_packed,
                      .fill_in = &fill_in_rows,
                      .list_below = &list_below,
                      .most_rows = &most_rows,
                      .most_rows_in_windows = &most_rows_in_windows,
                      .window_bytes = &window_bytes,
                      .floats_as_lists_below = kFloatsAsListsBelow,
                      .bytes_as_lists_below = kBytesAsListsBelow},
      .copy_rows = &copy_rows,
      .split_rows = &split_rows,
      .copy_blocks = &copy_blocks,
      .weight_gradient = &weight_gradient,
      .gradient_rows = &gradient_rows,
      .fma_loop = &fma_loop,
      .fma_load_loop = &fma_load_loop,
      .peak_flops = kPeakFlops,
  };
  return &kTable;
}

}  // namespace sift::cpu::SIFT_ISA
