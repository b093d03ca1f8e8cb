// Every kernel template for views, for the translation unit of one instruction set.
#pragma once

#include "simd/views/divide.h"
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
      .divide = &divide,
      .softmax_row = &softmax_row,
      .softmax_lanes = &softmax_lanes,
  };
  return kKernels;
}

}  // namespace sift::cpu::SIFT_ISA
