// Products of two computed matrices, for each of a batch of them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/op.h"
#include "ops/tensor_view.h"
#include "simd/kernel_table.h"
#include "simd/views/kernel_table.h"

namespace sift::cpu {

struct BatchedMatmulOptions {
  std::vector<std::int64_t> batch;  // sizes of its axes
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  std::int64_t depth = 1;
  float scale = 1;
  TensorView left;   // [batch][rows][depth]
  TensorView right;  // [batch][columns][depth]
  Layout layout = Layout::nchw;
};

// scale * left right^T, [batch][rows][columns]. Input and second operand are the tensors of left and right, which may
// be one. The result is one image of as many channels as it has values; in NCHWn16 it is one of each image, since the
// lanes hold images. Unlike other operators', the output may not be the second operand.
class BatchedMatmul final : public Op {
 public:
  // Throws std::invalid_argument for sizes below zero, views that leave their tensors, and tensors of different numbers
  // of images in NCHWn16.
  BatchedMatmul(BatchedMatmulOptions options, const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return options_.layout; }
  OtherSizes other_sizes(const Shape& in) const override;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  struct Operand {
    const float* first;   // of the matrix
    std::int64_t stride;  // floats from one row or column to the next
    std::int64_t depth_stride;
  };
  // Rows of one matrix and columns of a tile.
  struct Tile {
    std::int64_t first_row;
    std::int64_t row_count;
    std::int64_t first_column;
    std::int64_t column_count;
  };

  Operand matrix_of(const TensorView& view, const float* tensor, std::int64_t group, std::int64_t matrix) const;
  void run_planes(ThreadPool& pool, const float* left, const float* right, float* out) const;
  void run_lanes(ThreadPool& pool, const float* left, const float* right, float* out) const;
  std::int64_t rows_of_task(const ThreadPool& pool, std::int64_t others, std::int64_t least) const;
  void run_tile(const Operand& left, const Operand& right, const Tile& tile, float* out) const;
  void pack(const Operand& right, const Tile& tile, std::int64_t first, std::int64_t depth, float* panel) const;

  BatchedMatmulOptions options_;
  std::int64_t matrices_;
  const KernelTable& kernels_;
  const ViewKernels& view_kernels_;
};

}  // namespace sift::cpu
