// The positions of input and output that the windows of a kernel connect, and loops over the rows of a tensor by them.
// Tensors are in NCHWn16.
#pragma once

#include <cstdint>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "base/thread_pool.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// For each position on one side, the connected positions on the other. Steps that lead outside are limited, so that no
// product with them overflows.
struct Joined {
  std::vector<PoolTaps> positions;
  PoolSteps steps;
};

// Rows and columns of one side.
struct WindowRows {
  Joined rows;
  Joined columns;

  // For each output the positions of the input, and the reverse.
  static WindowRows of_outputs(const ConvGeometry& geometry, const Shape& in, const Shape& out);
  static WindowRows of_inputs(const ConvGeometry& geometry, const Shape& in, const Shape& out);

  PoolRow row(std::int64_t y, bool non_temporal) const {
    return {.row = rows.positions[static_cast<std::size_t>(y)],
            .row_steps = rows.steps,
            .columns = columns.positions.data(),
            .column_steps = columns.steps,
            .size = static_cast<std::int64_t>(columns.positions.size()),
            .non_temporal = non_temporal};
  }

  // Whether each position is connected to at least one.
  bool all_joined() const;
};

inline std::int64_t plane_floats(const Shape& shape) { return shape.h * shape.w * kLanes; }

// run(plane, row of the plane, its PoolRow) for all rows that are written.
template <typename Run>
void for_each_row(ThreadPool& pool, const Shape& written, const WindowRows& windows, bool non_temporal,
                  const KernelTable& kernels, const Run& run) {
  pool.parallel_for(ceil_div(written.n, kLanes) * written.c, [&](std::int64_t plane) {
    for (std::int64_t y = 0; y < written.h; ++y) run(plane, y, windows.row(y, non_temporal));
    if (non_temporal) kernels.end_non_temporal_stores();
  });
}

}  // namespace sift::cpu
