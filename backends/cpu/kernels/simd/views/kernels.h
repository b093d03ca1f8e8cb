// Every kernel template for views, for the translation unit of one instruction set.
#pragma once

#include "simd/views/binary_functions.h"
#include "simd/views/extremes.h"
#include "simd/views/functions.h"
#include "simd/views/kernel_table.h"
#include "simd/views/lane_product.h"
#include "simd/views/product_tile.h"
#include "simd/views/softmax.h"

namespace sift::cpu::SIFT_ISA {

const ViewKernels& view_kernels();
const ViewKernels& view_kernels() {
  static constexpr ViewKernels kKernels{
      .product_tile = [](const ProductTileArgs& args) { product_tile(args); },
      .tile_columns = kMostProductBlocks * kBlock,
      .lane_product = &lane_product,
      .binary = &binary,
      .function_of = &function_of,
      .softmax_row = &softmax_row,
      .softmax_lanes = &softmax_lanes,
      .extreme_of_row = &extreme_of_row,
      .extremes_of_lanes = &extremes_of_lanes,
      .extreme_value_of_row = &extreme_value_of_row,
      .extreme_values_of_lanes = &extreme_values_of_lanes,
      .next_beyond = &next_beyond,
  };
  return kKernels;
}

}  // namespace sift::cpu::SIFT_ISA
