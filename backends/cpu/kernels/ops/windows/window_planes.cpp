// Windows of images in planes, where sixteen neighbours are a block.
#include <algorithm>
#include <limits>

#include "ops/windows/window_run.h"
#include "ops/windows/window_scratch.h"

namespace sift::cpu {
namespace {

// Where pixels lie in a copy of a plane with its padding: rows and columns are sorted by their remainders modulo the
// strides, so that the operands of neighbouring outputs are neighbours.
struct PlaneCopy {
  std::int64_t stride_h;
  std::int64_t stride_w;
  std::int64_t pitch;         // floats from a row to the next one of the same remainder
  std::int64_t column_phase;  // floats from the columns of a remainder to those of the next
  std::int64_t row_phase;     // the same of rows

  PlaneCopy(const ConvGeometry& g, const Shape& out)
      : stride_h(g.stride_h),
        stride_w(g.stride_w),
        pitch(ceil_div((out.w - 1) * g.stride_w + (g.kernel_w - 1) * g.dilation_w + 1, g.stride_w)),
        column_phase(ceil_div((out.h - 1) * g.stride_h + (g.kernel_h - 1) * g.dilation_h + 1, g.stride_h) * pitch),
        row_phase(g.stride_w * column_phase) {}

  std::int64_t row(std::int64_t y) const { return y % stride_h * row_phase + y / stride_h * pitch; }
  std::int64_t column(std::int64_t x) const { return x % stride_w * column_phase + x / stride_w; }
  // A block at the end reads up to 15 lanes that are not stored.
  std::size_t floats() const { return static_cast<std::size_t>(stride_h * row_phase + kLanes); }
};

// Copies rows that follow one another in the copy, from `args.to` on, behind `pad` columns of padding.
void sort_columns(const KernelTable& kernels, const PlaneCopy& copy, const CopyRowsArgs& args, std::int64_t pad) {
  CopyRowsArgs placed = args;
  placed.to += copy.column(pad);
  if (copy.stride_w == 1) return kernels.copy_rows(placed);
  // Nearly all networks that stride do so by two.
  if (copy.stride_w == 2) return kernels.split_rows(placed, args.to + copy.column(pad + 1));
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const float* const from = args.from + row * args.from_pitch;
    float* const to = args.to + row * args.to_pitch;
    for (std::int64_t x = 0; x < args.width; ++x) to[copy.column(pad + x)] = from[x];
  }
}

}  // namespace

void WindowRun::run_nchw(const PlaneMethod& method, std::int64_t first, std::int64_t last, const float* in,
                         float* out) const {
  if (method.masks != nullptr) {
    run_masked(*method.masks, first, last, in, out);
  } else if (method.strided.has_value() && layer_.kind == WindowKind::maximum) {
    run_maxima(*method.strided, first, last, in, out);
  } else if (method.strided.has_value()) {
    run_strided(*method.strided, first, last, in, out);
  } else {
    run_copied(first, last, in, out);
  }
}

void WindowRun::run_copied(std::int64_t first, std::int64_t last, const float* in, float* out) const {
  WindowScratch& scratch = window_scratch();
  const PlaneCopy copy(g_, out_);
  float* const plane = scratch.plane.floats(copy.floats());
  // Once for all planes: each puts its pixels into the same places.
  std::fill_n(plane, copy.floats(), padding());
  list_window(
      [&](std::int64_t i, std::int64_t j) { return copy.row(i * g_.dilation_h) + copy.column(j * g_.dilation_w); });
  // No window may reach beyond the padding on the left, or at the top.
  const std::int64_t reach_h = (out_.h - 1) * g_.stride_h + (g_.kernel_h - 1) * g_.dilation_h + 1;
  const std::int64_t reach_w = (out_.w - 1) * g_.stride_w + (g_.kernel_w - 1) * g_.dilation_w + 1;
  const std::int64_t width = std::clamp<std::int64_t>(reach_w - g_.pad_left, 0, in_.w);
  const std::int64_t height = std::clamp<std::int64_t>(reach_h - g_.pad_top, 0, in_.h);
  // Short rows share blocks: what lies between them is computed, and not stored.
  const std::int64_t flat_blocks = ceil_div((out_.h - 1) * copy.pitch + out_.w, kLanes);
  const bool may_be_flat = layer_.kind != WindowKind::sum && 4 * flat_blocks <= 3 * out_.h * ceil_div(out_.w, kLanes);
  float* const flat = may_be_flat ? scratch.outputs.floats(static_cast<std::size_t>(flat_blocks * kLanes)) : nullptr;
  for (std::int64_t number = first; number < last; ++number) {
    const float* const from = in + number * distances_.in;
    for (std::int64_t y = 0; y < std::min(g_.stride_h, height); ++y) {
      sort_columns(layer_.kernels, copy,
                   {.from = from + y * in_.w,
                    .from_pitch = g_.stride_h * in_.w,
                    .to = plane + copy.row(y + g_.pad_top),
                    .to_pitch = copy.pitch,
                    .rows = ceil_div(height - y, g_.stride_h),
                    .width = width},
                   g_.pad_left);
    }
    const auto channel = static_cast<std::size_t>(number % in_.c);
    float* const to = out + number * distances_.out;
    WindowArgs args = start(channel);
    take_taps(channel, args);
    args.square = square_of(args);
    if (!may_be_flat || args.square != 0) {
      copied_plane(args, plane, copy.pitch, to);
      continue;
    }
    args.in = plane;
    args.step = kLanes;
    args.out = flat;
    args.blocks = static_cast<std::uint32_t>(flat_blocks);
    layer_.kernels.window(layer_.kind, args);
    layer_.kernels.copy_rows(
        {.from = flat, .from_pitch = copy.pitch, .to = to, .to_pitch = out_.w, .rows = out_.h, .width = out_.w});
  }
}

void WindowRun::run_masked(const PlaneMasks& masks, std::int64_t first, std::int64_t last, const float* in,
                           float* out) const {
  for (std::int64_t number = first; number < last; ++number) {
    const std::int64_t channel = number % in_.c;
    const WindowArgs own = start(static_cast<std::size_t>(channel));
    MaskedWindowArgs args{.in = in + number * distances_.in,
                          .window = masks.window.data(),
                          .masks = masks.masks.data(),
                          .active = nullptr,
                          .weights = nullptr,
                          .tap_count = static_cast<std::uint32_t>(masks.window.size()),
                          .start = own.start,
                          .outside = padding(),
                          .out = out + number * distances_.out,
                          .blocks = static_cast<std::uint32_t>(masks.blocks),
                          .last_lanes = static_cast<std::uint32_t>(masks.last_lanes),
                          .activation = own.activation};
    if (layer_.kind == WindowKind::weighted_sum) {
      const auto taps = layer_.weights->row_columns(channel);
      args.active = taps.data();
      args.weights = layer_.weights->row_values(channel).data();
      args.tap_count = static_cast<std::uint32_t>(taps.size());
    }
    layer_.kernels.masked_window(layer_.kind, args);
  }
}

// Weighted sums only.
void WindowRun::run_strided(const StridedMasks& masks, std::int64_t first, std::int64_t last, const float* in,
                            float* out) const {
  for (std::int64_t number = first; number < last; ++number) {
    const std::int64_t channel = number % in_.c;
    const WindowArgs own = start(static_cast<std::size_t>(channel));
    const auto taps = layer_.weights->row_columns(channel);
    const auto values = layer_.weights->row_values(channel);
    // The first tap in this row of the window, or in one below.
    const auto from_row = [&](std::int64_t row) {
      return std::ranges::lower_bound(taps, static_cast<std::uint32_t>(row * g_.kernel_w)) - taps.begin();
    };
    for (const Stretch& rows : rows_) {
      const std::ptrdiff_t begin = from_row(rows.taps.begin);
      const std::ptrdiff_t end = std::max(begin, from_row(rows.taps.end));
      layer_.kernels.strided_window({
          .in = in + number * distances_.in + (rows.begin * g_.stride_h - g_.pad_top) * in_.w,
          .row_step = g_.stride_h * in_.w,
          .window = masks.window.data(),
          .masks = masks.masks.data(),
          .active = taps.data() + begin,
          .weights = values.data() + begin,
          .tap_count = static_cast<std::uint32_t>(end - begin),
          .start = own.start,
          .out = out + number * distances_.out + rows.begin * out_.w,
          .out_row_step = out_.w,
          .rows = static_cast<std::uint32_t>(rows.end - rows.begin),
          .blocks = static_cast<std::uint32_t>(masks.blocks),
          .last_lanes = static_cast<std::uint32_t>(masks.last_lanes),
          .activation = own.activation,
      });
    }
  }
}

void WindowRun::run_maxima(const StridedMasks& masks, std::int64_t first, std::int64_t last, const float* in,
                           float* out) const {
  for (std::int64_t number = first; number < last; ++number) {
    for (const Stretch& rows : rows_) {
      layer_.kernels.strided_maximum({
          .in = in + number * distances_.in + (rows.begin * g_.stride_h - g_.pad_top) * in_.w,
          .row_step = g_.stride_h * in_.w,
          .window = masks.window.data() + rows.taps.begin * g_.kernel_w,
          .masks = masks.masks.data(),
          .tap_rows = static_cast<std::uint32_t>(rows.taps.size()),
          .columns = static_cast<std::uint32_t>(g_.kernel_w),
          .start = padding(),
          .out = out + number * distances_.out + rows.begin * out_.w,
          .out_row_step = out_.w,
          .rows = static_cast<std::uint32_t>(rows.end - rows.begin),
          .blocks = static_cast<std::uint32_t>(masks.blocks),
          .last_lanes = static_cast<std::uint32_t>(masks.last_lanes),
      });
    }
  }
}

// The size of a square of neighbouring taps, all of them active, that there is a kernel for; else 0.
std::int64_t WindowRun::square_of(const WindowArgs& args) const {
  const bool neighbours = g_.stride_h == 1 && g_.stride_w == 1 && g_.dilation_h == 1 && g_.dilation_w == 1;
  const bool all_active = args.tap_count == g_.kernel_h * g_.kernel_w;
  const bool has_kernel = (g_.kernel_w == 3 || g_.kernel_w == 5) && g_.kernel_w <= layer_.kernels.largest_square;
  const bool is_square = layer_.kind == WindowKind::weighted_sum && g_.kernel_h == g_.kernel_w;
  return is_square && neighbours && all_active && has_kernel ? g_.kernel_w : 0;
}

void WindowRun::copied_plane(WindowArgs args, const float* plane, std::int64_t pitch, float* out) const {
  args.in = plane;
  args.out = out;
  if (layer_.kind != WindowKind::sum && out_.w <= kLanes && args.square == 0) {
    // A row is one block: rows take the place of blocks, so that several are in flight.
    args.step = pitch;
    args.out_step = out_.w;
    args.blocks = static_cast<std::uint32_t>(out_.h);
    args.lanes = args.last_lanes = static_cast<std::uint32_t>(out_.w);
    layer_.kernels.window(layer_.kind, args);
    return;
  }
  args.step = args.out_step = kLanes;
  args.blocks = static_cast<std::uint32_t>(ceil_div(out_.w, kLanes));
  args.last_lanes = static_cast<std::uint32_t>(out_.w - (ceil_div(out_.w, kLanes) - 1) * kLanes);
  args.row_step = pitch;
  args.out_row_step = out_.w;
  if (layer_.kind != WindowKind::sum) {
    args.rows = static_cast<std::uint32_t>(out_.h);
    layer_.kernels.window(layer_.kind, args);
    return;
  }
  // Rows whose averages have other divisors are others.
  std::vector<float>& scales = window_scratch().scales;
  for (const Stretch& stretch : rows_) {
    scales.clear();
    for (const Stretch& cols : cols_) {
      const std::int64_t divisor = std::max<std::int64_t>(stretch.divisor * cols.divisor, 1);
      scales.insert(scales.end(), static_cast<std::size_t>(cols.end - cols.begin), 1.0F / static_cast<float>(divisor));
    }
    args.scales = scales.data();
    args.rows = static_cast<std::uint32_t>(stretch.end - stretch.begin);
    args.in = plane + stretch.begin * pitch;
    args.out = out + stretch.begin * out_.w;
    layer_.kernels.window(layer_.kind, args);
  }
}

}  // namespace sift::cpu
