// Every int8 kernel template, for the translation unit of one instruction set. Defines `int8_kernels()` in its
// namespace.
#pragma once

#include "simd/int8/gather.h"
#include "simd/int8/kernel_table.h"
#include "simd/int8/plain.h"
#include "simd/int8/requantize.h"
#include "simd/int8/rows.h"
#include "simd/int8/sell.h"
#include "simd/int8/share.h"

namespace sift::cpu::SIFT_ISA {

const Int8Kernels* int8_kernels();
const Int8Kernels* int8_kernels() {
  static constexpr Int8Kernels kTable{
#if defined(__AVX512VNNI__)
      .runs_generated = true,
#else
      .runs_generated = false,
#endif
      .most_weight = kMostWeight,
      .rows = &rows,
#if defined(__AVX512VNNI__)
      .sell_rows = &sell_rows,
#else
      .sell_rows = nullptr,
#endif
      .requantize = &requantize,
      .dequantize = &dequantize,
      .gather_taps = &gather_taps,
      .share_taps = &share_taps,
      .max_taps = &max_taps,
      .sum_positions = &sum_positions,
      .quantize = &quantize,
      .dequantize_bytes = &dequantize_bytes,
      .from_bytes = &from_bytes,
      .to_bytes = &to_bytes,
      .extremes = &extremes,
      .extremes_of_lanes = &extremes_of_lanes,
      .add = &add,
      .look_up = &look_up,
  };
  return &kTable;
}

}  // namespace sift::cpu::SIFT_ISA
