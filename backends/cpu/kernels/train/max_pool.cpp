#include "train/max_pool.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/cache.h"
#include "base/thread_pool.h"
#include "train/lane_runs.h"

namespace sift::cpu {
namespace {

struct Axis {
  std::int64_t in;
  std::int64_t out;
  std::int64_t kernel;
  std::int64_t stride;
  std::int64_t dilation;
  std::int64_t pad;
};

// Which positions are joined along an axis, for each of those on one side. Steps that lead out of it are cut short, so
// that no product with them runs over.
struct Joined {
  std::vector<PoolTaps> positions;
  PoolSteps steps;

  // Places in floats, that positions are apart on the other side; taps of the whole kernel.
  Joined scaled(std::int64_t floats, std::int64_t taps) && {
    for (PoolTaps& position : positions) {
      position.place *= floats;
      position.tap *= static_cast<std::int32_t>(taps);
    }
    steps.place *= floats;
    steps.tap *= static_cast<std::int32_t>(taps);
    return std::move(*this);
  }
};

void join(PoolTaps& position, std::int64_t place, std::int64_t tap) {
  if (position.count++ == 0) {
    position.place = place;
    position.tap = static_cast<std::int32_t>(tap);
  }
}

Joined inputs_of_outputs(const Axis& axis) {
  Joined joined{std::vector<PoolTaps>(static_cast<std::size_t>(axis.out)), {std::min(axis.dilation, axis.in), 1}};
  for (std::int64_t out = 0; out < axis.out; ++out) {
    for (std::int64_t tap = 0; tap < axis.kernel; ++tap) {
      const std::int64_t in = out * axis.stride - axis.pad + tap * axis.dilation;
      if (in >= 0 && in < axis.in) join(joined.positions[static_cast<std::size_t>(out)], in, tap);
    }
  }
  return joined;
}

// Of the taps that reach an input, every stride / gcd(stride, dilation)-th does from a whole number of strides away.
Joined outputs_of_inputs(const Axis& axis) {
  const std::int64_t common = std::gcd(axis.stride, axis.dilation);
  Joined joined{std::vector<PoolTaps>(static_cast<std::size_t>(axis.in)),
                {-std::min(axis.dilation / common, axis.out),
                 static_cast<std::int32_t>(std::min(axis.stride / common, axis.kernel))}};
  for (std::int64_t in = 0; in < axis.in; ++in) {
    for (std::int64_t tap = 0; tap < axis.kernel; ++tap) {
      const std::int64_t from = in + axis.pad - tap * axis.dilation;
      if (from >= 0 && from % axis.stride == 0 && from / axis.stride < axis.out) {
        join(joined.positions[static_cast<std::size_t>(in)], from / axis.stride, tap);
      }
    }
  }
  return joined;
}

Axis rows_of(const ConvGeometry& g, const Shape& in, const Shape& out) {
  return {in.h, out.h, g.kernel_h, g.stride_h, g.dilation_h, g.pad_top};
}
Axis columns_of(const ConvGeometry& g, const Shape& in, const Shape& out) {
  return {in.w, out.w, g.kernel_w, g.stride_w, g.dilation_w, g.pad_left};
}

// run(plane, row of the plane, its PoolRow) for all rows that are written.
template <typename Run>
void for_each_row(ThreadPool& pool, const Shape& written, const Joined& rows, const Joined& columns, bool non_temporal,
                  const KernelTable& kernels, const Run& run) {
  pool.parallel_for(ceil_div(written.n, kLanes) * written.c, [&](std::int64_t plane) {
    for (std::int64_t y = 0; y < written.h; ++y) {
      run(plane, y,
          PoolRow{.row = rows.positions[static_cast<std::size_t>(y)],
                  .row_steps = rows.steps,
                  .columns = columns.positions.data(),
                  .column_steps = columns.steps,
                  .size = written.w,
                  .non_temporal = non_temporal});
    }
    if (non_temporal) kernels.end_non_temporal_stores();
  });
}

std::int64_t plane_floats(const Shape& shape) { return shape.h * shape.w * kLanes; }

}  // namespace

TrainablePool::TrainablePool(const ConvGeometry& geometry) : geometry_(geometry) {
  const std::int64_t taps = geometry.kernel_h * geometry.kernel_w;
  if (taps > kNoTap) {
    throw std::invalid_argument("max pooling: the kernel has " + std::to_string(taps) + " taps; at most " +
                                std::to_string(kNoTap) + " are supported in training");
  }
}

Shape TrainablePool::output_shape(const Shape& in) const {
  return {in.n, in.c, geometry_.output_h(in.h), geometry_.output_w(in.w)};
}

void TrainablePool::forward(ThreadPool& pool, const Shape& shape, const float* x, float* out, std::uint8_t* taps,
                            const KernelTable& kernels) const {
  const Shape to = output_shape(shape);
  const std::int64_t floats = element_count(to, Layout::nchw_n16);
  if (floats == 0) return;
  const Joined rows = inputs_of_outputs(rows_of(geometry_, shape, to)).scaled(shape.w * kLanes, geometry_.kernel_w);
  const Joined columns = inputs_of_outputs(columns_of(geometry_, shape, to)).scaled(kLanes, 1);
  // The first row of the input after those of an output row.
  const auto end_of_window = [&](std::int64_t y) {
    const ConvGeometry& g = geometry_;
    const std::int64_t end = y * g.stride_h - g.pad_top + (g.kernel_h - 1) * g.dilation_h + 1;
    return std::clamp<std::int64_t>(end, 0, shape.h);
  };
  for_each_row(pool, to, rows, columns, exceeds_caches(floats), kernels,
               [&](std::int64_t plane, std::int64_t y, const PoolRow& row) {
                 const std::int64_t at = plane * plane_floats(to) + y * to.w * kLanes;
                 const float* const input = x + plane * plane_floats(shape);
                 const std::int64_t known = end_of_window(y);
                 kernels.lanes.max_pool({.row = row,
                                         .x = input,
                                         .out = out + at,
                                         .taps = taps + at,
                                         .ahead = input + known * shape.w * kLanes,
                                         .ahead_blocks = (end_of_window(y + 1) - known) * shape.w});
               });
}

void TrainablePool::backward(ThreadPool& pool, const Shape& shape, const float* dy, const std::uint8_t* taps, float* dx,
                             const KernelTable& kernels) const {
  const Shape from = output_shape(shape);
  const std::int64_t floats = element_count(shape, Layout::nchw_n16);
  if (floats == 0) return;
  const Joined rows = outputs_of_inputs(rows_of(geometry_, shape, from)).scaled(from.w * kLanes, geometry_.kernel_w);
  const Joined columns = outputs_of_inputs(columns_of(geometry_, shape, from)).scaled(kLanes, 1);
  for_each_row(pool, shape, rows, columns, exceeds_caches(floats), kernels,
               [&](std::int64_t plane, std::int64_t y, const PoolRow& row) {
                 const std::int64_t start = plane * plane_floats(from);
                 kernels.lanes.max_pool_gradient({.row = row,
                                                  .dy = dy + start,
                                                  .taps = taps + start,
                                                  .dx = dx + plane * plane_floats(shape) + y * shape.w * kLanes});
               });
}

}  // namespace sift::cpu
