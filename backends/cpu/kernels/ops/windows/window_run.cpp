#include "ops/windows/window_run.h"

#include <algorithm>
#include <limits>

#include "base/cache.h"
#include "ops/windows/window_scratch.h"

namespace sift::cpu {
namespace {

// The maximum over a window that holds nothing but padding, as onnxruntime has it.
constexpr float kNothing = std::numeric_limits<float>::lowest();

}  // namespace

WindowRun::WindowRun(const WindowLayer& layer, const Shape& in, const Shape& out)
    : WindowRun(layer, layer.geometry, in, out, {in.h * in.w, out.h * out.w}) {}

WindowRun::WindowRun(const WindowLayer& layer, const ConvGeometry& geometry, const Shape& in, const Shape& out,
                     const PlaneDistances& distances)
    : layer_(layer), g_(geometry), in_(in), out_(out), distances_(distances) {
  for (std::int64_t y = 0; y < out_.h; ++y) extend(rows_, {y, y + 1, taps_y(y), divisor_y(y)});
  for (std::int64_t x = 0; x < out_.w; ++x) extend(cols_, {x, x + 1, taps_x(x), divisor_x(x)});
}

// Taps of the window at `out` that lie inside [low, high).
WindowRun::Range WindowRun::taps_inside(std::int64_t out, std::int64_t kernel, std::int64_t stride,
                                        std::int64_t dilation, std::int64_t pad, std::int64_t low, std::int64_t high) {
  const std::int64_t first = out * stride - pad;
  const std::int64_t begin = first >= low ? 0 : ceil_div(low - first, dilation);
  const std::int64_t end = first >= high ? 0 : (high - 1 - first) / dilation + 1;
  return {std::min(begin, kernel), std::min(end, kernel)};
}

WindowRun::Range WindowRun::taps_y(std::int64_t y) const {
  return taps_inside(y, g_.kernel_h, g_.stride_h, g_.dilation_h, g_.pad_top, 0, in_.h);
}

WindowRun::Range WindowRun::taps_x(std::int64_t x) const {
  return taps_inside(x, g_.kernel_w, g_.stride_w, g_.dilation_w, g_.pad_left, 0, in_.w);
}

std::int64_t WindowRun::divisor_y(std::int64_t y) const {
  if (!layer_.count_padding) return taps_y(y).size();
  return taps_inside(y, g_.kernel_h, g_.stride_h, g_.dilation_h, g_.pad_top, -g_.pad_top, in_.h + g_.pad_bottom).size();
}

std::int64_t WindowRun::divisor_x(std::int64_t x) const {
  if (!layer_.count_padding) return taps_x(x).size();
  return taps_inside(x, g_.kernel_w, g_.stride_w, g_.dilation_w, g_.pad_left, -g_.pad_left, in_.w + g_.pad_right)
      .size();
}

void WindowRun::extend(std::vector<Stretch>& stretches, const Stretch& next) {
  const bool alike =
      !stretches.empty() && stretches.back().taps == next.taps && stretches.back().divisor == next.divisor;
  if (alike) {
    stretches.back().end = next.end;
  } else {
    stretches.push_back(next);
  }
}

WindowArgs WindowRun::start(std::size_t channel) const {
  WindowArgs args{};
  args.activation = layer_.activation;
  args.rows = 1;
  args.out_step = kLanes;
  args.lanes = args.last_lanes = kLanes;
  if (layer_.kind == WindowKind::maximum) args.start = kNothing;
  if (layer_.kind == WindowKind::weighted_sum && !layer_.bias.empty()) args.start = layer_.bias[channel];
  return args;
}

float WindowRun::padding() const { return layer_.kind == WindowKind::maximum ? kNothing : 0.0F; }

void WindowRun::take_taps(std::size_t channel, WindowArgs& args) const {
  WindowScratch& scratch = window_scratch();
  args.taps = scratch.window.data();
  args.tap_count = static_cast<std::uint32_t>(scratch.window.size());
  if (layer_.kind != WindowKind::weighted_sum) return;
  const auto taps = layer_.weights->row_columns(static_cast<std::int64_t>(channel));
  args.weights = layer_.weights->row_values(static_cast<std::int64_t>(channel)).data();
  if (taps.size() == scratch.window.size()) return;
  scratch.taps.resize(taps.size());
  for (std::size_t i = 0; i < taps.size(); ++i) scratch.taps[i] = scratch.window[taps[i]];
  args.taps = scratch.taps.data();
  args.tap_count = static_cast<std::uint32_t>(taps.size());
}

// Appends to scratch.taps place(i, j) of the taps in these rows and columns of the window; of weighted sums, of those
// that are listed, and their weights to scratch.weights.
template <typename Place>
void WindowRun::add_taps(std::size_t channel, Range rows, Range cols, Place place) const {
  WindowScratch& scratch = window_scratch();
  if (layer_.kind != WindowKind::weighted_sum) {
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      for (std::int64_t j = cols.begin; j < cols.end; ++j) scratch.taps.push_back(place(i, j));
    }
    return;
  }
  const auto taps = layer_.weights->row_columns(static_cast<std::int64_t>(channel));
  const auto values = layer_.weights->row_values(static_cast<std::int64_t>(channel));
  std::size_t at = 0;
  if (rows.begin > 0) {
    const auto first = std::ranges::lower_bound(taps, static_cast<std::uint32_t>(rows.begin * g_.kernel_w));
    at = static_cast<std::size_t>(first - taps.begin());
  }
  // Room for all of them: growing one by one shows next to a small plane.
  const std::size_t before = scratch.taps.size();
  scratch.taps.resize(before + taps.size() - at);
  scratch.weights.resize(scratch.taps.size());
  std::size_t added = before;
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    const std::int64_t row = i * g_.kernel_w;
    for (; at < taps.size() && taps[at] < row + g_.kernel_w; ++at) {
      const std::int64_t j = taps[at] - row;
      if (j < cols.begin || j >= cols.end) continue;
      scratch.taps[added] = place(i, j);
      scratch.weights[added++] = values[at];
    }
  }
  scratch.taps.resize(added);
  scratch.weights.resize(added);
}

void WindowRun::run_nchw_n16(std::int64_t first, std::int64_t last, const float* in, float* out) const {
  pad_or_cut_nchw_n16(first, last, in, out);
  if (non_temporal()) layer_.kernels.end_non_temporal_stores();
}

// Blocks are aligned, and what is larger than the shared cache will not be found there.
bool WindowRun::non_temporal() const { return exceeds_caches(element_count(out_, Layout::nchw_n16)); }

// Every pixel is a block. A small plane is copied with its padding, so that no window is cut: what a cut saves is less
// than what it costs to begin again, with other taps, three times in a row.
void WindowRun::pad_or_cut_nchw_n16(std::int64_t first, std::int64_t last, const float* in, float* out) const {
  const std::int64_t reach_h = (out_.h - 1) * g_.stride_h + (g_.kernel_h - 1) * g_.dilation_h + 1;
  const std::int64_t reach_w = (out_.w - 1) * g_.stride_w + (g_.kernel_w - 1) * g_.dilation_w + 1;
  const std::int64_t pitch = reach_w * kLanes;
  const std::int64_t size = reach_h * pitch;
  const bool averages = layer_.kind == WindowKind::sum;
  if (averages || size * static_cast<std::int64_t>(sizeof(float)) > level1_cache_bytes() / 2) {
    cut_nchw_n16(first, last, in, out);
    return;
  }
  WindowScratch& scratch = window_scratch();
  float* const copy = scratch.plane.floats(static_cast<std::size_t>(size));
  // Once for all planes: each puts its pixels into the same places.
  std::fill(copy, copy + size, padding());
  list_window([&](std::int64_t i, std::int64_t j) { return i * g_.dilation_h * pitch + j * g_.dilation_w * kLanes; });
  // No window may reach beyond the padding.
  const std::int64_t columns = std::clamp<std::int64_t>(reach_w - g_.pad_left, 0, in_.w);
  const std::int64_t rows = std::clamp<std::int64_t>(reach_h - g_.pad_top, 0, in_.h);
  for (std::int64_t plane = first; plane < last; ++plane) {
    const float* const from = in + plane * in_.h * in_.w * kLanes;
    for (std::int64_t y = 0; y < rows; ++y) {
      const float* const row = from + y * in_.w * kLanes;
      std::copy(row, row + columns * kLanes, copy + (y + g_.pad_top) * pitch + g_.pad_left * kLanes);
    }
    const auto channel = static_cast<std::size_t>(plane % in_.c);
    WindowArgs args = start(channel);
    take_taps(channel, args);
    args.non_temporal = non_temporal();
    args.rows = static_cast<std::uint32_t>(out_.h);
    args.row_step = g_.stride_h * pitch;
    args.out_row_step = out_.w * kLanes;
    args.in = copy;
    args.step = g_.stride_w * kLanes;
    args.out = out + plane * out_.h * out_.w * kLanes;
    args.blocks = static_cast<std::uint32_t>(out_.w);
    layer_.kernels.window(layer_.kind, args);
  }
}

// Windows are cut at the borders, and neighbours with the same cut run together.
void WindowRun::cut_nchw_n16(std::int64_t first, std::int64_t last, const float* in, float* out) const {
  WindowScratch& scratch = window_scratch();
  // Few enough that the stretches at both ends of the rows find them in the cache.
  constexpr std::int64_t kTogether = 8;
  // From memory, rows are prefetched: what the processor prefetches by itself ends with each page.
  const bool large = exceeds_caches(element_count(in_, Layout::nchw_n16));
  for (std::int64_t plane = first; plane < last; ++plane) {
    const auto channel = static_cast<std::size_t>(plane % in_.c);
    WindowArgs args = start(channel);
    args.non_temporal = non_temporal();
    args.step = g_.stride_w * kLanes;
    args.row_step = g_.stride_h * in_.w * kLanes;
    args.out_row_step = out_.w * kLanes;
    if (large) {
      args.ahead_rows = static_cast<std::uint32_t>(g_.stride_h);
      args.ahead = ((g_.kernel_h - 1) * g_.dilation_h + 1) * in_.w * kLanes;
      args.ahead_pitch = in_.w * kLanes;
    }
    for (const Stretch& rows : rows_) {
      scratch.clear();
      for (const Stretch& cols : cols_) {
        add_taps(channel, rows.taps, cols.taps, [&](std::int64_t i, std::int64_t j) {
          return (i * g_.dilation_h * in_.w + j * g_.dilation_w) * kLanes;
        });
        scratch.tap_ends.push_back(scratch.taps.size());
      }
      for (std::int64_t y = rows.begin; y < rows.end; y += kTogether) {
        args.rows = static_cast<std::uint32_t>(std::min(kTogether, rows.end - y));
        std::size_t tap = 0;
        for (std::size_t i = 0; i < cols_.size(); ++i) {
          const Stretch& cols = cols_[i];
          const std::int64_t in_y = y * g_.stride_h - g_.pad_top;
          const std::int64_t in_x = cols.begin * g_.stride_w - g_.pad_left;
          args.in = in + ((plane * in_.h + in_y) * in_.w + in_x) * kLanes;
          args.taps = scratch.taps.data() + tap;
          args.weights = scratch.weights.data() + tap;
          args.tap_count = static_cast<std::uint32_t>(scratch.tap_ends[i] - tap);
          args.scale = 1.0F / static_cast<float>(std::max<std::int64_t>(rows.divisor * cols.divisor, 1));
          args.out = out + ((plane * out_.h + y) * out_.w + cols.begin) * kLanes;
          args.blocks = static_cast<std::uint32_t>(cols.end - cols.begin);
          layer_.kernels.window(layer_.kind, args);
          tap = scratch.tap_ends[i];
        }
      }
    }
  }
}

}  // namespace sift::cpu
