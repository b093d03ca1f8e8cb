#include "conv/winograd.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "base/aligned_buffer.h"
#include "base/cache.h"
#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

constexpr std::int64_t kExtent = 6;       // pixels of a phase along an axis of a tile
constexpr std::int64_t kMostTaps = 4;     // of a phase
constexpr std::int64_t kMostPhases = 16;  // of all channels: their points fit the first-level cache, or nearly so

struct Scratch {
  AlignedBuffer patch;
  AlignedBuffer points;
  AlignedBuffer sums;
  std::vector<Scatter> scatters;
  std::vector<std::ptrdiff_t> rows;
  std::vector<std::uint16_t> inside;
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

using TapFactors = std::array<std::array<double, kMostTaps>, kExtent>;

// What each tap of a row adds to the points.
TapFactors tap_factors(std::int64_t taps) {
  constexpr std::array<double, kExtent - 1> kPlaces{0.0, kWinogradInner, -kWinogradInner, kWinogradOuter,
                                                    -kWinogradOuter};
  TapFactors factors{};
  for (std::size_t i = 0; i < kPlaces.size(); ++i) {
    double factor = 1.0;
    for (std::size_t j = 0; j < kPlaces.size(); ++j) {
      if (j != i) factor /= kPlaces[i] - kPlaces[j];
    }
    for (std::int64_t tap = 0; tap < taps; ++tap, factor *= kPlaces[i])
      factors[i][static_cast<std::size_t>(tap)] = factor;
  }
  factors.back()[static_cast<std::size_t>(taps - 1)] = 1.0;
  return factors;
}

// Most taps of a phase along an axis.
std::int64_t phase_taps(std::int64_t kernel, std::int64_t stride) { return ceil_div(kernel, stride); }

// Phases along an axis that have as many; they are the first ones, and the others have one less.
std::int64_t full_phases(std::int64_t kernel, std::int64_t stride) { return (kernel - 1) % stride + 1; }

}  // namespace

bool Winograd::suits(const ConvGeometry& g, std::int64_t columns) {
  // Phases, and with them strides and kernels, are few: nothing below runs over.
  for (const std::int64_t stride : {g.stride_h, g.stride_w}) {
    if (stride < 1 || stride > kMostPhases) return false;
  }
  for (const std::int64_t kernel : {g.kernel_h, g.kernel_w}) {
    if (kernel < 1 || kernel > kMostTaps * kMostPhases) return false;
  }
  const std::int64_t taps = phase_taps(g.kernel_h, g.stride_h);
  const std::int64_t channels = columns / (g.kernel_h * g.kernel_w);
  return g.groups == 1 && g.dilation_h == 1 && g.dilation_w == 1 && (taps == 3 || taps == 4) &&
         phase_taps(g.kernel_w, g.stride_w) == taps && channels > 0 && channels <= kMostPhases &&
         channels * g.kernel_h * g.kernel_w == columns && channels * g.stride_h * g.stride_w <= kMostPhases;
}

Winograd::Winograd(const SparseWeights& weights, std::vector<float> bias, const ConvGeometry& geometry,
                   Activation activation, Layout layout, const KernelTable& kernels)
    : rows_(weights.rows()),
      geometry_(geometry),
      activation_(activation),
      layout_(layout),
      kernels_(kernels),
      bias_(std::move(bias)) {
  const ConvGeometry& g = geometry;
  if (rows_ == 0 || !suits(g, weights.columns())) {
    throw std::invalid_argument("winograd: not a convolution of few channels with three or four taps per phase");
  }
  if (!bias_.empty() && static_cast<std::int64_t>(bias_.size()) != rows_) {
    throw std::invalid_argument("winograd: one bias per output channel");
  }
  channels_ = weights.columns() / (g.kernel_h * g.kernel_w);
  phases_ = {.columns = g.stride_w,
             .rows = g.stride_h * channels_,
             .full_columns = full_phases(g.kernel_w, g.stride_w),
             .full_rows = full_phases(g.kernel_h, g.stride_h) * channels_};
  tile_ = kExtent + 1 - phase_taps(g.kernel_h, g.stride_h);
  for (std::int64_t x = 0; x < kExtent * g.stride_w; ++x) {
    column_places_.push_back((x % g.stride_w * phases_.rows * kWinogradPoints + x / g.stride_w) * kLanes);
  }
  for (std::int64_t channel = 0; channel < channels_; ++channel) {
    for (std::int64_t y = 0; y < kExtent * g.stride_h; ++y) {
      const std::int64_t phase = y % g.stride_h * channels_ + channel;
      row_places_.push_back((phase * kWinogradPoints + y / g.stride_h * kExtent) * kLanes);
    }
  }
  const std::int64_t groups = ceil_div(rows_, kWinogradRows);
  bias_.resize(static_cast<std::size_t>(groups * kWinogradRows), 0.0F);
  weights_.assign(static_cast<std::size_t>(groups * kWinogradPoints * phases_.count() * kWinogradRows), 0.0F);
  const TapFactors factors = tap_factors(kExtent + 1 - tile_);
  std::vector<double> points(static_cast<std::size_t>(phases_.count() * kWinogradPoints));
  for (std::int64_t row = 0; row < rows_; ++row) {
    std::ranges::fill(points, 0.0);
    const auto columns = weights.row_columns(row);
    const auto values = weights.row_values(row);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::int64_t x = columns[i] % g.kernel_w;
      const std::int64_t y = columns[i] / g.kernel_w % g.kernel_h;
      const std::int64_t channel = columns[i] / (g.kernel_w * g.kernel_h);
      const std::int64_t phase = x % g.stride_w * phases_.rows + y % g.stride_h * channels_ + channel;
      for (std::size_t point = 0; point < kWinogradPoints; ++point) {
        points[static_cast<std::size_t>(phase) * kWinogradPoints + point] +=
            double{values[i]} * factors[point / kExtent][static_cast<std::size_t>(y / g.stride_h)] *
            factors[point % kExtent][static_cast<std::size_t>(x / g.stride_w)];
      }
    }
    for (std::int64_t phase = 0; phase < phases_.count(); ++phase) {
      for (std::int64_t point = 0; point < kWinogradPoints; ++point) {
        const std::int64_t line = row / kWinogradRows * kExtent + point / kExtent;
        const std::int64_t at =
            ((line * phases_.count() + phase) * kExtent + point % kExtent) * kWinogradRows + row % kWinogradRows;
        weights_[static_cast<std::size_t>(at)] =
            static_cast<float>(points[static_cast<std::size_t>(phase * kWinogradPoints + point)]);
      }
    }
  }
}

Shape Winograd::output_shape(const Shape& in) const {
  if (in.n < 0 || in.h < 0 || in.w < 0 || in.c != channels_) {
    throw std::invalid_argument("winograd: the input does not have the weights' number of channels");
  }
  return {in.n, rows_, geometry_.output_h(in.h), geometry_.output_w(in.w)};
}

std::int64_t Winograd::weight_bytes() const {
  return static_cast<std::int64_t>((bias_.size() + weights_.size()) * sizeof(float));
}

// Fills [phases][36][16] with the pixels that tiles of planes read, zeros around the image.
void Winograd::gather_tiles(const Shape& shape, const Block& block, const float* in, float* patch) const {
  const ConvGeometry& g = geometry_;
  Scratch& scratch = thread_scratch();
  const std::int64_t height = kExtent * g.stride_h;  // of a tile
  const auto width = static_cast<std::int64_t>(column_places_.size());
  const auto count = row_places_.size();
  scratch.rows.resize(count);
  scratch.inside.assign(count, 0);
  for (std::size_t row = 0; row < count; ++row) {
    const auto channel = static_cast<std::int64_t>(row) / height;
    scratch.rows[row] = (channel * shape.h + static_cast<std::int64_t>(row) % height) * shape.w;
  }
  std::array<WinogradTile, kLanes> tiles{};
  for (std::int64_t tile = 0; tile < block.tiles; ++tile) {
    const Block::Place place = block.place(tile);
    const std::int64_t top = place.y * tile_ * g.stride_h - g.pad_top;
    const std::int64_t left = place.x * tile_ * g.stride_w - g.pad_left;
    tiles[static_cast<std::size_t>(tile)] = {
        .at = (place.unit * channels_ * shape.h + top) * shape.w + left,
        .begin = static_cast<std::int32_t>(std::clamp<std::int64_t>(-left, 0, width)),
        .end = static_cast<std::int32_t>(std::clamp<std::int64_t>(shape.w - left, 0, width))};
    const std::int64_t end = std::min(height, shape.h - top);
    for (std::int64_t y = std::max<std::int64_t>(-top, 0); y < end; ++y) {
      scratch.inside[static_cast<std::size_t>(y)] |= static_cast<std::uint16_t>(1U << tile);
    }
  }
  // All channels have the same rows.
  for (auto row = static_cast<std::size_t>(height); row < count; ++row) {
    scratch.inside[row] = scratch.inside[row - static_cast<std::size_t>(height)];
  }
  kernels_.winograd_tiles({.in = in,
                           .tiles = tiles.data(),
                           .rows = scratch.rows.data(),
                           .inside = scratch.inside.data(),
                           .count = static_cast<std::int64_t>(count),
                           .places = column_places_.data(),
                           .pixels = width,
                           .row_places = row_places_.data(),
                           .to = patch});
  // What the row of tiles below reads and this one does not; few lines of a row lie side by side, and no processor
  // finds out by itself where the next ones are.
  constexpr std::int64_t kLineFloats = 16;
  const std::int64_t step = tile_ * g.stride_w;
  const std::int64_t below = tile_ * g.stride_h;
  const std::int64_t apart = std::max<std::int64_t>(kLineFloats / step, 1);
  for (std::int64_t tile = 0; tile < block.tiles; tile += apart) {
    const float* const from = in + tiles[static_cast<std::size_t>(tile)].at + below * shape.w;
    for (std::int64_t channel = 0; channel < channels_; ++channel) {
      for (std::int64_t y = height - below; y < height; ++y) {
        __builtin_prefetch(from + (channel * shape.h + y) * shape.w, 0, 2);
      }
    }
  }
}

// The same of one tile of 16 images.
void Winograd::gather_images(const Shape& shape, const Block& block, const float* in, float* patch) const {
  const ConvGeometry& g = geometry_;
  std::memset(patch, 0, static_cast<std::size_t>(phases_.count() * kWinogradPoints * kLanes) * sizeof(float));
  const Block::Place place = block.place(0);
  const std::int64_t top = place.y * tile_ * g.stride_h - g.pad_top;
  const std::int64_t left = place.x * tile_ * g.stride_w - g.pad_left;
  const std::int64_t first_x = std::max<std::int64_t>(-left, 0);
  const std::int64_t last_x = std::min(static_cast<std::int64_t>(column_places_.size()), shape.w - left);
  const std::int64_t lines = kExtent * g.stride_h;
  const std::int64_t last_y = std::min(lines, shape.h - top);
  for (std::int64_t channel = 0; channel < channels_; ++channel) {
    const float* const plane = in + (place.unit * channels_ + channel) * shape.h * shape.w * kLanes;
    for (std::int64_t y = std::max<std::int64_t>(-top, 0); y < last_y; ++y) {
      const float* const line = plane + ((top + y) * shape.w + left) * kLanes;
      float* const to = patch + row_places_[static_cast<std::size_t>(channel * lines + y)];
      for (std::int64_t x = first_x; x < last_x; ++x) {
        std::memcpy(to + column_places_[static_cast<std::size_t>(x)], line + x * kLanes, kLanes * sizeof(float));
      }
    }
  }
}

// Fills `scatters` with where the outputs of the tiles go: in NCHW, up to 16 pixels of a row at a time.
void Winograd::list_outputs(const Shape& shape, const Block& block, const Target& target,
                            std::vector<Scatter>& scatters) const {
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t pixel = nchw ? 1 : kLanes;
  const std::int64_t step = nchw ? kLanes : 1;
  const std::int64_t first_unit = block.place(0).unit;
  scatters.clear();
  for (std::int64_t tile = 0; tile < block.tiles;) {
    const Block::Place place = block.place(tile);
    const std::int64_t tiles = std::min(block.tiles - tile, block.columns - place.x);  // in this row of tiles
    const std::int64_t width = std::min(tiles * tile_, shape.w - place.x * tile_);
    const std::int64_t top = place.y * tile_;
    const std::int64_t end = std::min(top + tile_, target.end_row);
    for (std::int64_t y = std::max(top, target.first_row); y < end; ++y) {
      const std::int64_t line =
          (place.unit - first_unit) * target.unit + ((y - target.first_row) * shape.w + place.x * tile_) * pixel;
      for (std::int64_t x = 0; x < width; x += step) {
        const std::int64_t source = (y - top) * tile_ * kLanes + tile * tile_ + x * pixel;
        scatters.push_back({line + x * pixel, static_cast<std::uint32_t>(source),
                            static_cast<std::uint32_t>(nchw ? std::min(kLanes, width - x) : kLanes)});
      }
    }
    tile += tiles;
  }
}

const float* Winograd::points_of(const Shape& shape, const Block& block, const float* in) const {
  Scratch& scratch = thread_scratch();
  const auto floats = static_cast<std::size_t>(phases_.count() * kWinogradPoints * kLanes);
  float* const patch = scratch.patch.floats(floats);
  float* const points = scratch.points.floats(floats);
  if (layout_ == Layout::nchw) {
    gather_tiles(shape, block, in, patch);
  } else {
    gather_images(shape, block, in, patch);
  }
  kernels_.winograd_input(patch, phases_.count(), points);
  return points;
}

float* Winograd::sums_of(const float* points, std::int64_t row) const {
  float* const sums = thread_scratch().sums.floats(static_cast<std::size_t>(kWinogradRows * tile_floats()));
  kernels_.winograd_rows({.points = points,
                          .weights = weights_.data() + row * kWinogradPoints * phases_.count(),
                          .phases = phases_,
                          .outputs = static_cast<int>(tile_),
                          .in_turns = layout_ == Layout::nchw,
                          .bias = bias_.data() + row,
                          .out = sums});
  return sums;
}

void Winograd::run_block(const Shape& shape, const Block& block, const float* in, const Target& target) const {
  const float* const points = points_of(shape, block, in);
  std::vector<Scatter>& scatters = thread_scratch().scatters;
  list_outputs(output_shape(shape), block, target, scatters);
  EpilogueArgs epilogue{};
  epilogue.entries = scatters.data();
  epilogue.count = static_cast<std::uint32_t>(scatters.size());
  epilogue.acc_stride = tile_floats();
  epilogue.out_stride = target.plane;
  epilogue.activation = activation_;
  epilogue.non_temporal = target.non_temporal;
  for (std::int64_t row = 0; row < rows_; row += kWinogradRows) {
    const std::int64_t rows = std::min<std::int64_t>(kWinogradRows, rows_ - row);
    epilogue.out = target.out + row * target.plane;
    epilogue.residual = target.residual == nullptr ? nullptr : target.residual + row * target.plane;
    epilogue.rows = static_cast<std::uint32_t>(rows);
    if (!target.non_temporal) {
      for (std::int64_t i = 0; i < rows; ++i) {
        for (const Scatter& entry : scatters) __builtin_prefetch(epilogue.out + i * target.plane + entry.target, 1);
      }
    }
    epilogue.acc = sums_of(points, row);
    kernels_.epilogue(epilogue);
  }
}

void Winograd::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  const Shape out_shape = output_shape(shape);
  const std::int64_t out_floats = element_count(out_shape, layout_);
  if (out_floats == 0) return;
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t units = nchw ? shape.n : ceil_div(shape.n, kLanes);
  const std::int64_t tile_rows = ceil_div(out_shape.h, tile_);
  const std::int64_t tile_columns = ceil_div(out_shape.w, tile_);
  const std::int64_t all = units * tile_rows * tile_columns;
  const std::int64_t together = nchw ? kLanes : 1;
  const bool non_temporal = !nchw && stores_non_temporally(out_floats, out, others.second);
  pool.parallel_for(ceil_div(all, together), [&](std::int64_t number) {
    const Block block{.tiles = std::min(together, all - number * together),
                      .rows = tile_rows,
                      .columns = tile_columns,
                      .first = number * together};
    const std::int64_t unit = out_floats / units;
    const std::int64_t at = block.place(0).unit * unit;
    run_block(shape, block, in,
              {.out = out + at,
               .residual = others.second == nullptr ? nullptr : others.second + at,
               .plane = unit / rows_,
               .unit = unit,
               .first_row = 0,
               .end_row = out_shape.h,
               .non_temporal = non_temporal});
    if (non_temporal) kernels_.end_non_temporal_stores();
  });
}

}  // namespace sift::cpu
