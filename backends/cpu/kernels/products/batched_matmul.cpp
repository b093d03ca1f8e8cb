#include "products/batched_matmul.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// Of the sums that are made at a time: the columns of a tile stay in the first-level cache while all rows pass.
constexpr std::int64_t kDepthAtOnce = 128;
// Of images in lanes, of which each value is a cache line: as much of both operands as the second-level cache keeps.
constexpr std::int64_t kLaneDepth = 64;
// Multiply-adds that are worth a thread.
constexpr std::int64_t kTaskSize = 65536;
// Rows that share the columns that a task copies.
constexpr std::int64_t kLeastRows = 32;
constexpr std::int64_t kLeastLaneRows = 8;
// With fewer rows, columns that are adjacent are read where they lie.
constexpr std::int64_t kCopiedFrom = 16;

float* panel_of(std::int64_t floats) {
  static thread_local AlignedBuffer buffer;
  return buffer.floats(static_cast<std::size_t>(floats));
}

std::vector<std::int64_t> sizes_of(const BatchedMatmulOptions& options, std::int64_t rows) {
  std::vector<std::int64_t> sizes = options.batch;
  sizes.push_back(rows);
  sizes.push_back(options.depth);
  return sizes;
}

}  // namespace

BatchedMatmul::BatchedMatmul(BatchedMatmulOptions options, const KernelTable& kernels)
    : options_(std::move(options)),
      matrices_(value_count(options_.batch)),
      kernels_(kernels),
      view_kernels_(view_kernels_of(kernels)) {
  const BatchedMatmulOptions& o = options_;
  check_view("batched matmul", o.left, sizes_of(o, o.rows), o.layout);
  check_view("batched matmul", o.right, sizes_of(o, o.columns), o.layout);
  if (o.layout == Layout::nchw_n16 && o.left.shape.n != o.right.shape.n) {
    throw std::invalid_argument("batched matmul: both operands must have as many images");
  }
  output_shape(o.left.shape);
}

Shape BatchedMatmul::output_shape(const Shape& in) const {
  if (in != options_.left.shape) throw std::invalid_argument("batched matmul: it is for an input of another shape");
  const std::int64_t sizes[] = {matrices_, options_.rows, options_.columns};
  const Shape out{options_.layout == Layout::nchw_n16 ? in.n : 1, value_count(sizes), 1, 1};
  element_count(out, options_.layout);
  return out;
}

OtherSizes BatchedMatmul::other_sizes(const Shape&) const {
  return {.second = element_count(options_.right.shape, options_.layout)};
}

void BatchedMatmul::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  const Shape made = output_shape(shape);
  if (others.second == nullptr) throw std::invalid_argument("batched matmul: the second operand is missing");
  const std::int64_t floats = element_count(made, options_.layout);
  if (floats == 0) return;
  if (options_.depth == 0) {
    std::fill_n(out, floats, 0.0F);
  } else if (options_.layout == Layout::nchw_n16) {
    run_lanes(pool, in, others.second, out);
  } else {
    run_planes(pool, in, others.second, out);
  }
}

BatchedMatmul::Operand BatchedMatmul::matrix_of(const TensorView& view, const float* tensor, std::int64_t group,
                                                std::int64_t matrix) const {
  const std::size_t axes = options_.batch.size();
  const std::int64_t unit = value_floats(options_.layout);
  const std::int64_t offset = offset_of(matrix, options_.batch, std::span(view.strides).first(axes));
  return {tensor + group * group_floats(view.shape, options_.layout) + (view.first + offset) * unit,
          view.strides[axes] * unit, view.strides[axes + 1] * unit};
}

void BatchedMatmul::run_lanes(ThreadPool& pool, const float* left, const float* right, float* out) const {
  const BatchedMatmulOptions& o = options_;
  const std::int64_t groups = group_count(o.left.shape, o.layout);
  const std::int64_t rows = rows_of_task(pool, groups * matrices_, kLeastLaneRows);
  const std::int64_t parts = ceil_div(o.rows, rows);
  const std::int64_t together = ceil_div(kTaskSize, rows * o.columns * o.depth * kLanes);
  const std::int64_t count = groups * matrices_ * parts;
  pool.parallel_for(ceil_div(count, together), [&](std::int64_t task) {
    for (std::int64_t i = task * together; i < std::min(count, (task + 1) * together); ++i) {
      const std::int64_t row = i % parts * rows;
      const std::int64_t number = i / parts;
      const Operand a = matrix_of(o.left, left, number / matrices_, number % matrices_);
      const Operand b = matrix_of(o.right, right, number / matrices_, number % matrices_);
      for (std::int64_t first = 0; first < o.depth; first += kLaneDepth) {
        view_kernels_.lane_product({.rows = a.first + row * a.stride + first * a.depth_stride,
                                    .row_stride = a.stride,
                                    .row_step = a.depth_stride,
                                    .row_count = std::min(rows, o.rows - row),
                                    .columns = b.first + first * b.depth_stride,
                                    .column_stride = b.stride,
                                    .column_step = b.depth_stride,
                                    .column_count = o.columns,
                                    .depth = std::min(kLaneDepth, o.depth - first),
                                    .scale = o.scale,
                                    .adds = first > 0,
                                    .out = out + (number * o.rows + row) * o.columns * kLanes,
                                    .out_stride = o.columns * kLanes});
      }
    }
  });
}

// Rows of a task, of `others` that are there besides: as many as leave each thread a few tasks. Sums do not depend on
// how rows are divided.
std::int64_t BatchedMatmul::rows_of_task(const ThreadPool& pool, std::int64_t others, std::int64_t least) const {
  const std::int64_t wanted = ceil_div(4 * std::int64_t{pool.threads()}, others);
  return std::min(options_.rows, std::max(least, ceil_div(ceil_div(options_.rows, wanted), least) * least));
}

void BatchedMatmul::run_planes(ThreadPool& pool, const float* left, const float* right, float* out) const {
  const BatchedMatmulOptions& o = options_;
  const std::int64_t tile_columns = std::min(view_kernels_.tile_columns, o.columns);
  const std::int64_t tiles = ceil_div(o.columns, tile_columns);
  const std::int64_t rows = rows_of_task(pool, matrices_ * tiles, kLeastRows);
  const std::int64_t parts = ceil_div(o.rows, rows);
  const std::int64_t together = ceil_div(kTaskSize, rows * tile_columns * o.depth);
  const std::int64_t count = matrices_ * tiles * parts;
  pool.parallel_for(ceil_div(count, together), [&](std::int64_t task) {
    for (std::int64_t i = task * together; i < std::min(count, (task + 1) * together); ++i) {
      const std::int64_t matrix = i / tiles / parts;
      const std::int64_t row = i % parts * rows;
      const std::int64_t column = i / parts % tiles * tile_columns;
      const Tile tile{row, std::min(rows, o.rows - row), column, std::min(tile_columns, o.columns - column)};
      run_tile(matrix_of(o.left, left, 0, matrix), matrix_of(o.right, right, 0, matrix), tile,
               out + matrix * o.rows * o.columns);
    }
  });
}

void BatchedMatmul::run_tile(const Operand& left, const Operand& right, const Tile& tile, float* out) const {
  const BatchedMatmulOptions& o = options_;
  const std::int64_t blocks = ceil_div(tile.column_count, kLanes);
  const bool in_place = right.stride == 1 && tile.row_count < kCopiedFrom && tile.column_count == blocks * kLanes;
  float* const panel = in_place ? nullptr : panel_of(blocks * kLanes * kDepthAtOnce);
  for (std::int64_t first = 0; first < o.depth; first += kDepthAtOnce) {
    const std::int64_t depth = std::min(kDepthAtOnce, o.depth - first);
    if (!in_place) pack(right, tile, first, depth, panel);
    const float* const columns = right.first + tile.first_column + first * right.depth_stride;
    view_kernels_.product_tile({.rows = left.first + tile.first_row * left.stride + first * left.depth_stride,
                                .row_stride = left.stride,
                                .row_step = left.depth_stride,
                                .row_count = tile.row_count,
                                .columns = in_place ? columns : panel,
                                .column_block = in_place ? kLanes : depth * kLanes,
                                .column_step = in_place ? right.depth_stride : kLanes,
                                .column_count = tile.column_count,
                                .depth = depth,
                                .scale = o.scale,
                                .adds = first > 0,
                                .out = out + tile.first_row * o.columns + tile.first_column,
                                .out_stride = o.columns});
  }
}

// panel[block][k][16]; lanes behind the last column are zero.
void BatchedMatmul::pack(const Operand& right, const Tile& tile, std::int64_t first, std::int64_t depth,
                         float* panel) const {
  const float* const begin = right.first + tile.first_column * right.stride + first * right.depth_stride;
  for (std::int64_t column = 0; column < tile.column_count; column += kLanes, panel += depth * kLanes) {
    const std::int64_t lanes = std::min(kLanes, tile.column_count - column);
    const float* const from = begin + column * right.stride;
    if (right.stride != 1 && right.depth_stride == 1) {
      kernels_.interleave(from, right.stride, depth, static_cast<int>(lanes), panel, false);
      continue;
    }
    if (lanes < kLanes) std::fill_n(panel, depth * kLanes, 0.0F);
    if (right.stride == 1) {
      kernels_.copy_rows({.from = from,
                          .from_pitch = right.depth_stride,
                          .to = panel,
                          .to_pitch = kLanes,
                          .rows = depth,
                          .width = lanes});
      continue;
    }
    for (std::int64_t k = 0; k < depth; ++k) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        panel[k * kLanes + lane] = from[lane * right.stride + k * right.depth_stride];
      }
    }
  }
}

}  // namespace sift::cpu
