#include "ops/windows/window_op.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/thread_pool.h"

namespace sift::cpu {

WindowOp::WindowOp(WindowKind kind, const ConvGeometry& geometry, bool ceil_mode, Activation activation, Layout layout,
                   const KernelTable& kernels)
    : layer_{.kind = kind, .geometry = geometry, .activation = activation, .kernels = kernels},
      ceil_mode_(ceil_mode),
      layout_(layout) {
  const ConvGeometry& g = geometry;
  const bool positive =
      g.kernel_h > 0 && g.kernel_w > 0 && g.stride_h > 0 && g.stride_w > 0 && g.dilation_h > 0 && g.dilation_w > 0;
  const bool padded = g.pad_top >= 0 && g.pad_left >= 0 && g.pad_bottom >= 0 && g.pad_right >= 0;
  if (!positive || !padded) {
    throw std::invalid_argument("window: kernel, stride and dilation must be positive, padding not negative");
  }
}

Shape WindowOp::output_shape(const Shape& in) const {
  if (layer_.kind == WindowKind::weighted_sum && layer_.weights->rows() != in.c) {
    throw std::invalid_argument("depthwise: the input does not have the weights' number of channels");
  }
  const ConvGeometry& g = layer_.geometry;
  if (ceil_mode_) return {in.n, in.c, g.ceiled_h(in.h), g.ceiled_w(in.w)};
  return {in.n, in.c, g.output_h(in.h), g.output_w(in.w)};
}

// Null where planes are copied.
std::shared_ptr<const PlaneMasks> WindowOp::masks_for(const ConvGeometry& geometry, const Shape& in,
                                                      const Shape& out) const {
  constexpr std::size_t kKept = 16;
  if (layout_ != Layout::nchw || layer_.kernels.masked_window == nullptr || layer_.kind == WindowKind::sum ||
      !PlaneMasks::fit(geometry, in, out)) {
    return nullptr;
  }
  // Rows of 25 taps share so much of what they read that it is worth a copy of planes that are wider than a block.
  constexpr std::int64_t kShared = 25;
  const bool all_active = layer_.kind == WindowKind::weighted_sum && layer_.weights->density() == 1.0;
  if (all_active && layer_.weights->columns() == kShared && out.w > kLanes) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto known = std::ranges::find_if(masks_, [&](const auto& masks) {
    return masks->in.h == in.h && masks->in.w == in.w && masks->out.h == out.h && masks->out.w == out.w &&
           masks->pad_top == geometry.pad_top;
  });
  if (known != masks_.end()) return *known;
  if (masks_.size() == kKept) masks_.erase(masks_.begin());
  masks_.push_back(std::make_shared<const PlaneMasks>(geometry, in, out));
  return masks_.back();
}

PlaneMethod WindowOp::method_for(const ConvGeometry& geometry, const Shape& in, const Shape& out) const {
  // In place, a block reads twice as many pixels as of a copy with its columns sorted, which takes as long as to read
  // some taps.
  constexpr double kMostTaps = 12.0;
  if (layout_ == Layout::nchw && layer_.kernels.strided_window != nullptr && layer_.kind == WindowKind::weighted_sum &&
      geometry.stride_w == 2 &&
      layer_.weights->density() * static_cast<double>(layer_.weights->columns()) <= kMostTaps) {
    return {.masks = nullptr, .strided = StridedMasks(geometry, in.w, out.w)};
  }
  // Maxima of columns come before those of rows.
  if (layout_ == Layout::nchw && layer_.kernels.strided_maximum != nullptr && layer_.kind == WindowKind::maximum &&
      geometry.stride_w == 2 && geometry.dilation_w == 1 && 2 * out.w > kLanes) {
    return {.masks = nullptr, .strided = StridedMasks(geometry, in.w, out.w)};
  }
  return {.masks = masks_for(geometry, in, out), .strided = std::nullopt};
}

void WindowOp::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const Shape out_shape = output_shape(shape);
  if (element_count(out_shape, layout_) == 0) return;
  const WindowRun run(layer_, shape, out_shape);
  const PlaneMethod method = method_for(layer_.geometry, shape, out_shape);
  const std::int64_t planes = (layout_ == Layout::nchw ? shape.n : ceil_div(shape.n, kLanes)) * shape.c;
  constexpr std::int64_t kTasksPerThread = 8;  // enough to balance
  const std::int64_t together = std::max<std::int64_t>(planes / (pool.threads() * kTasksPerThread), 1);
  pool.parallel_for(ceil_div(planes, together), [&](std::int64_t task) {
    const std::int64_t first = task * together;
    const std::int64_t last = std::min(planes, first + together);
    if (layout_ == Layout::nchw) {
      run.run_nchw(method, first, last, in, out);
    } else {
      run.run_nchw_n16(first, last, in, out);
    }
  });
}

RowRange WindowOp::rows_read(const RowRange& rows, std::int64_t height) const {
  const ConvGeometry& g = layer_.geometry;
  const std::int64_t begin = std::max<std::int64_t>(rows.begin * g.stride_h - g.pad_top, 0);
  const std::int64_t end = (rows.end - 1) * g.stride_h - g.pad_top + (g.kernel_h - 1) * g.dilation_h + 1;
  return {begin, std::max(begin, std::min(end, height))};
}

void WindowOp::run_rows(const Shape& shape, const RowRange& rows, const float* in, float* out,
                        const PlaneDistances& distances) const {
  const RowRange read = rows_read(rows, shape.h);
  const Shape in_shape{1, shape.c, read.count(), shape.w};
  const Shape out_shape{1, shape.c, rows.count(), output_shape(shape).w};
  ConvGeometry geometry = layer_.geometry;
  geometry.pad_top += read.begin - rows.begin * geometry.stride_h;  // what is above the first row that is read
  const WindowRun run(layer_, geometry, in_shape, out_shape, distances);
  run.run_nchw(method_for(geometry, in_shape, out_shape), 0, shape.c, in, out);
}

Depthwise::Depthwise(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias,
                     const ConvGeometry& geometry, Activation activation, Layout layout, const KernelTable& kernels)
    : WindowOp(WindowKind::weighted_sum, geometry, false, activation, layout, kernels) {
  const bool one_bias = bias.empty() || static_cast<std::int64_t>(bias.size()) == weights->rows();
  if (weights->columns() != geometry.kernel_h * geometry.kernel_w || !one_bias) {
    throw std::invalid_argument("depthwise: one window of weights, and one bias, per channel");
  }
  layer_.weights = std::move(weights);
  layer_.bias = std::move(bias);
}

}  // namespace sift::cpu
