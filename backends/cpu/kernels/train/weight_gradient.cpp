#include "train/weight_gradient.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/cache.h"
#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

constexpr std::uint32_t kNoPlace = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t kMostPositions = 60;  // of a tile: rows of gradients stay less than a page apart
constexpr std::size_t kMostPackings = 4;
constexpr std::int64_t kFewestTasks = 16;  // a few per thread of most machines

// An axis of the window over a tile. Taps whose pixels lie a multiple of the stride apart are a phase: they share the
// pixels of one plane, one every stride.
struct Taps {
  std::int64_t count;
  std::int64_t stride;
  std::int64_t dilation;

  std::int64_t period() const { return stride / std::gcd(stride, dilation); }
  std::int64_t phases() const { return std::min(count, period()); }
  std::int64_t phase(std::int64_t tap) const { return tap % period(); }
  std::int64_t step(std::int64_t tap) const { return tap * dilation / stride; }
  std::int64_t reach() const { return step(count - 1); }
  std::int64_t first_pixel(std::int64_t phase) const { return phase * dilation % stride; }
};

Taps taps_of_rows(const ConvGeometry& g) { return {g.kernel_h, g.stride_h, g.dilation_h}; }
Taps taps_of_columns(const ConvGeometry& g) { return {g.kernel_w, g.stride_w, g.dilation_w}; }

}  // namespace

// Output pixels of a tile, and the panel that their operands are copied to.
struct WeightGradient::Tile {
  std::int64_t groups;  // of 16 images
  std::int64_t h;
  std::int64_t w;
  bool by_tap;  // a plane holds the operands of one tap, not the pixels of a phase
  std::int64_t plane_h;
  std::int64_t plane_w;
  std::int64_t slice_columns;

  std::int64_t positions() const { return groups * h * w; }
  std::int64_t plane_floats() const { return groups * plane_h * plane_w * kLanes; }
};

struct WeightGradient::Slice {
  struct Plane {
    std::int64_t channel;
    std::int64_t y;  // of the first pixel, from that of output pixel 0's first tap
    std::int64_t x;
  };
  std::vector<Plane> planes;
  std::vector<GradientRun> runs;  // without pointers
  std::vector<std::uint32_t> offsets;
  std::vector<std::uint32_t> rows;
  std::vector<std::uint32_t> places;  // of the sums, in their order; kNoPlace for fillers
};

struct WeightGradient::Task {
  std::int64_t row_begin;
  std::int64_t rows;
  std::vector<Slice> slices;
};

struct WeightGradient::Packing {
  std::int64_t h;  // of the output
  std::int64_t w;
  Tile tile;
  std::vector<Task> tasks;
};

WeightGradient::WeightGradient(std::int64_t rows, std::int64_t columns, std::span<const std::int64_t> indices,
                               std::span<const std::int64_t> places, const ConvGeometry& geometry,
                               const KernelTable& kernels)
    : rows_(rows), columns_(columns), geometry_(geometry), kernels_(kernels) {
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max() - 1;
  if (rows < 0 || columns < 0 || rows > kMost || columns > kMost ||
      static_cast<std::int64_t>(indices.size()) > kMost) {
    throw std::invalid_argument("weight gradient: rows, columns and indices must not be negative, and fit 32 bits");
  }
  if (geometry.groups < 1 || rows % geometry.groups != 0) {
    throw std::invalid_argument("weight gradient: groups must divide the rows");
  }
  if (columns % (geometry.kernel_h * geometry.kernel_w) != 0) {
    throw std::invalid_argument("weight gradient: columns must be a multiple of the kernel's taps");
  }
  if (!places.empty() && places.size() != indices.size()) {
    throw std::invalid_argument("weight gradient: there must be one place per index");
  }
  starts_.assign(static_cast<std::size_t>(rows) + 1, 0);
  columns_of_.reserve(indices.size());
  std::int64_t last = -1;
  for (const std::int64_t index : indices) {
    if (index <= last || index / std::max<std::int64_t>(columns, 1) >= rows) {
      throw std::invalid_argument("weight gradient: indices must ascend strictly and lie inside the matrix");
    }
    last = index;
    ++starts_[static_cast<std::size_t>(index / columns) + 1];
    columns_of_.push_back(static_cast<std::uint32_t>(index % columns));
  }
  std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
  places_.resize(indices.size());
  std::iota(places_.begin(), places_.end(), 0U);
  std::vector<bool> taken(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::int64_t place = places[i];
    if (place < 0 || place >= nnz() || taken[static_cast<std::size_t>(place)]) {
      throw std::invalid_argument("weight gradient: places must be those of the values, each once");
    }
    taken[static_cast<std::size_t>(place)] = true;
    places_[i] = static_cast<std::uint32_t>(place);
  }
}

Shape WeightGradient::output_shape(const Shape& in) const {
  const std::int64_t channels = columns_ / (geometry_.kernel_h * geometry_.kernel_w);
  if (in.c % geometry_.groups != 0 || in.c / geometry_.groups != channels) {
    throw std::invalid_argument("weight gradient: the input has " + std::to_string(in.c) + " channels, the weights " +
                                std::to_string(channels) + " in each of " + std::to_string(geometry_.groups) +
                                " groups");
  }
  return {in.n, rows_, geometry_.output_h(in.h), geometry_.output_w(in.w)};
}

// The least time per product: one load per operand, one per row of a block, and the sum over lanes at the tile's end.
WeightGradient::Tile WeightGradient::tile_of(const Shape& out) const {
  const Taps down = taps_of_rows(geometry_);
  const Taps across = taps_of_columns(geometry_);
  const std::int64_t taps = down.count * across.count;
  const std::int64_t panel = level1_cache_bytes() * 5 / 8 / static_cast<std::int64_t>(kLanes * sizeof(float));
  const double density = static_cast<double>(nnz()) / std::max(1.0, static_cast<double>(rows_ * columns_));
  Tile best{};
  double best_cost = std::numeric_limits<double>::infinity();
  for (std::int64_t w = 1; w <= std::min(out.w, kMostPositions); ++w) {
    const std::int64_t tile_w = ceil_div(out.w, ceil_div(out.w, w));
    for (std::int64_t h = 1; h <= std::min(out.h, kMostPositions / tile_w); ++h) {
      const std::int64_t tile_h = ceil_div(out.h, ceil_div(out.h, h));
      const bool is_whole = tile_h == out.h && tile_w == out.w;
      const std::int64_t groups = is_whole ? std::max<std::int64_t>(1, kMostPositions / (tile_h * tile_w)) : 1;
      Tile tile{.groups = groups, .h = tile_h, .w = tile_w, .by_tap = false, .plane_h = tile_h + down.reach(),
                .plane_w = tile_w + across.reach(), .slice_columns = 0};
      const std::int64_t phases = down.phases() * across.phases();
      const double by_phase = static_cast<double>(tile.plane_h) * static_cast<double>(tile.plane_w) *
                              static_cast<double>(phases);
      tile.by_tap = by_phase > static_cast<double>(taps) * static_cast<double>(tile_h * tile_w);
      if (tile.by_tap) {
        tile.plane_h = tile_h;
        tile.plane_w = tile_w;
      }
      const std::int64_t planes = std::max<std::int64_t>(1, panel / (tile.groups * tile.plane_h * tile.plane_w));
      tile.slice_columns = tile.by_tap ? planes : std::max<std::int64_t>(1, planes / phases) * taps;
      tile.slice_columns = std::min(tile.slice_columns, std::max<std::int64_t>(columns_, 1));
      const double positions = static_cast<double>(tile.positions());
      const double slots = std::clamp(density * static_cast<double>(tile.slice_columns), 0.5, 8.0);
      const double line = tile.plane_w == tile_w ? positions : static_cast<double>(tile_w);
      const double cost = (1 + 1 / slots) * (1 + 1 / line) + 3 / positions;
      if (cost < best_cost) {
        best_cost = cost;
        best = tile;
      }
    }
  }
  return best;
}


// Weights of the rows from `cursors` on, as far as they are in the columns before `column_end`.
void WeightGradient::pack_slice(const Tile& tile, std::int64_t row_begin, std::span<std::uint32_t> cursors,
                                std::int64_t column_end, Slice& slice) const {
  struct Piece {  // of a row
    std::uint32_t row;
    std::uint32_t begin;
    std::uint32_t count;
  };
  const Taps down = taps_of_rows(geometry_);
  const Taps across = taps_of_columns(geometry_);
  const std::int64_t taps = down.count * across.count;
  const std::int64_t phases = down.phases() * across.phases();
  const auto plane_of = [&](std::int64_t column) {
    if (tile.by_tap) return column;
    const std::int64_t tap = column % taps;
    return column / taps * phases + down.phase(tap / across.count) * across.phases() + across.phase(tap % across.count);
  };

  std::vector<Piece> pieces;
  std::vector<std::int64_t> planes;
  for (std::size_t row = 0; row < cursors.size(); ++row) {
    const std::uint32_t end = starts_[static_cast<std::size_t>(row_begin) + row + 1];
    const std::uint32_t begin = cursors[row];
    std::uint32_t& at = cursors[row];
    for (; at < end && columns_of_[at] < column_end; ++at) planes.push_back(plane_of(columns_of_[at]));
    // Pieces of about one size.
    const std::uint32_t parts = (at - begin + kMostGradientSlots - 1) / kMostGradientSlots;
    for (std::uint32_t part = 0; part < parts; ++part) {
      const std::uint32_t from = begin + (at - begin) * part / parts;
      pieces.push_back({static_cast<std::uint32_t>(row), from, begin + (at - begin) * (part + 1) / parts - from});
    }
  }
  std::sort(planes.begin(), planes.end());
  planes.erase(std::unique(planes.begin(), planes.end()), planes.end());
  for (const std::int64_t plane : planes) {
    if (tile.by_tap) {
      const std::int64_t tap = plane % taps;
      slice.planes.push_back({plane / taps, tap / across.count * down.dilation, tap % across.count * across.dilation});
    } else {
      const std::int64_t phase = plane % phases;
      slice.planes.push_back({plane / phases, down.first_pixel(phase / across.phases()),
                              across.first_pixel(phase % across.phases())});
    }
  }
  const auto offset_of = [&](std::int64_t column) {
    const auto plane = std::lower_bound(planes.begin(), planes.end(), plane_of(column)) - planes.begin();
    const std::int64_t tap = column % taps;
    const std::int64_t pixel =
        tile.by_tap ? 0 : down.step(tap / across.count) * tile.plane_w + across.step(tap % across.count);
    return static_cast<std::uint32_t>(plane * tile.plane_floats() + pixel * kLanes);
  };

  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.count > b.count; });
  for (std::size_t first = 0; first < pieces.size();) {
    const auto slots = static_cast<int>(pieces[first].count);
    const auto together = static_cast<std::size_t>(kernels_.gradient_rows(slots));
    if (slice.runs.empty() || slice.runs.back().slots != slots) {
      slice.runs.push_back({.slots = slots, .blocks = 0, .offsets = nullptr, .rows = nullptr, .sums = nullptr});
    }
    ++slice.runs.back().blocks;
    for (std::size_t i = first; i < first + together; ++i) {
      const Piece piece = i < pieces.size() ? pieces[i] : Piece{};
      slice.rows.push_back(piece.row * static_cast<std::uint32_t>(tile.positions() * kLanes));
      for (std::uint32_t slot = 0; slot < static_cast<std::uint32_t>(slots); ++slot) {
        const bool is_filler = slot >= piece.count;
        slice.offsets.push_back(is_filler ? 0 : offset_of(columns_of_[piece.begin + slot]));
        slice.places.push_back(is_filler ? kNoPlace : places_[piece.begin + slot]);
      }
    }
    slice.places.resize(static_cast<std::size_t>(ceil_div(static_cast<std::int64_t>(slice.places.size()), kLanes)) *
                            kLanes,
                        kNoPlace);
    first += together;
  }
}

std::shared_ptr<const WeightGradient::Packing> WeightGradient::packing_of(const Shape& out) const {
  const std::lock_guard lock(mutex_);
  for (const auto& known : packings_) {
    if (known->h == out.h && known->w == out.w) return known;
  }
  auto packing = std::make_shared<Packing>(Packing{out.h, out.w, tile_of(out), {}});
  const Tile& tile = packing->tile;
  const std::int64_t row_bytes = tile.positions() * static_cast<std::int64_t>(kLanes * sizeof(float));
  const std::int64_t group_rows = rows_ / geometry_.groups;
  const std::int64_t most_rows = std::max<std::int64_t>(8, level2_cache_bytes() / 2 / row_bytes);
  const std::int64_t chunk = ceil_div(group_rows, ceil_div(group_rows, most_rows));
  const std::int64_t chunks = ceil_div(group_rows, chunk);
  const std::int64_t slices = ceil_div(columns_, tile.slice_columns);
  const std::int64_t parts = std::clamp<std::int64_t>(kFewestTasks / (chunks * geometry_.groups), 1, ceil_div(slices, 4));
  const std::int64_t task_columns = ceil_div(slices, parts) * tile.slice_columns;
  for (std::int64_t group = 0; group < geometry_.groups; ++group) {
    for (std::int64_t first = 0; first < group_rows; first += chunk) {
      const std::int64_t row_begin = group * group_rows + first;
      const std::int64_t rows = std::min(chunk, group_rows - first);
      const auto from = starts_.begin() + row_begin;
      std::vector<std::uint32_t> cursors(from, from + rows);
      Task task{row_begin, rows, {}};
      for (std::int64_t column = 0; column < columns_; column += tile.slice_columns) {
        Slice slice;
        pack_slice(tile, row_begin, cursors, column + tile.slice_columns, slice);
        if (!slice.planes.empty()) task.slices.push_back(std::move(slice));
        const std::int64_t next = column + tile.slice_columns;
        if (!task.slices.empty() && (next % task_columns == 0 || next >= columns_)) {
          packing->tasks.push_back(std::move(task));
          task = {row_begin, rows, {}};
        }
      }
    }
  }
  if (packings_.size() == kMostPackings) packings_.erase(packings_.begin());
  packings_.push_back(packing);
  return packing;
}

namespace {

// Pixels of output rows and columns, from one group of 16 images to the panel: `step` apart in x, zeros outside of it.
void copy_plane(const float* x, const Shape& in, std::int64_t y, std::int64_t x_begin, std::int64_t step_y,
                std::int64_t step_x, std::int64_t h, std::int64_t w, std::int64_t pitch, float* to) {
  constexpr std::size_t kBytes = kLanes * sizeof(float);
  for (std::int64_t row = 0; row < h; ++row, to += pitch * kLanes) {
    const std::int64_t from_y = y + row * step_y;
    if (from_y < 0 || from_y >= in.h) {
      std::memset(to, 0, static_cast<std::size_t>(w) * kBytes);
      continue;
    }
    const float* const line = x + from_y * in.w * kLanes;
    for (std::int64_t column = 0; column < w; ++column) {
      const std::int64_t from_x = x_begin + column * step_x;
      if (from_x < 0 || from_x >= in.w) {
        std::memset(to + column * kLanes, 0, kBytes);
      } else {
        std::memcpy(to + column * kLanes, line + from_x * kLanes, kBytes);
      }
    }
  }
}

}  // namespace

void WeightGradient::run_task(const Packing& packing, const Task& task, const Shape& in, const Shape& out,
                              const float* x, const float* dy, float* dvalues, bool accumulate) const {
  const Tile& tile = packing.tile;
  const std::int64_t image_groups = ceil_div(in.n, kLanes);
  const std::int64_t in_channels = columns_ / (geometry_.kernel_h * geometry_.kernel_w);
  const std::int64_t channel_begin = task.row_begin / (rows_ / geometry_.groups) * in_channels;
  std::size_t sum_count = 0;
  std::size_t most_planes = 0;
  for (const Slice& slice : task.slices) {
    sum_count += slice.places.size();
    most_planes = std::max(most_planes, slice.planes.size());
  }
  static thread_local AlignedBuffer sum_buffer;
  static thread_local AlignedBuffer x_buffer;
  static thread_local AlignedBuffer dy_buffer;
  float* const sums = sum_buffer.floats(sum_count);
  float* const x_panel = x_buffer.floats(most_planes * static_cast<std::size_t>(tile.plane_floats()));
  const std::int64_t dy_pitch = tile.positions() * kLanes;
  float* const dy_panel = dy_buffer.floats(static_cast<std::size_t>(task.rows * dy_pitch));
  std::fill_n(sums, sum_count, 0.0F);

  std::vector<GradientLine> lines;
  for (std::int64_t g0 = 0; g0 < image_groups; g0 += tile.groups) {
    const std::int64_t groups = std::min(tile.groups, image_groups - g0);
    for (std::int64_t y0 = 0; y0 < out.h; y0 += tile.h) {
      const std::int64_t h = std::min(tile.h, out.h - y0);
      for (std::int64_t x0 = 0; x0 < out.w; x0 += tile.w) {
        const std::int64_t w = std::min(tile.w, out.w - x0);
        lines.clear();
        for (std::int64_t line = 0; line < groups * h; ++line) {
          const std::int64_t at = (line / h * tile.plane_h + line % h) * tile.plane_w;
          GradientLine next{static_cast<std::uint32_t>(at * kLanes), static_cast<std::uint32_t>(line * w * kLanes),
                            static_cast<std::uint32_t>(w)};
          if (!lines.empty() && lines.back().x + lines.back().count * kLanes == next.x) {
            lines.back().count += next.count;
          } else {
            lines.push_back(next);
          }
        }
        for (std::int64_t row = 0; row < task.rows; ++row) {
          float* to = dy_panel + row * dy_pitch;
          for (std::int64_t line = 0; line < groups * h; ++line, to += w * kLanes) {
            const std::int64_t from =
                (((g0 + line / h) * out.c + task.row_begin + row) * out.h + y0 + line % h) * out.w + x0;
            std::memcpy(to, dy + from * kLanes, static_cast<std::size_t>(w) * kLanes * sizeof(float));
          }
        }
        float* slice_sums = sums;
        for (const Slice& slice : task.slices) {
          float* to = x_panel;
          for (const Slice::Plane& plane : slice.planes) {
            for (std::int64_t group = 0; group < groups; ++group) {
              const float* const from =
                  x + ((g0 + group) * in.c + channel_begin + plane.channel) * in.h * in.w * kLanes;
              copy_plane(from, in, y0 * geometry_.stride_h - geometry_.pad_top + plane.y,
                         x0 * geometry_.stride_w - geometry_.pad_left + plane.x, geometry_.stride_h,
                         geometry_.stride_w, h + tile.plane_h - tile.h, w + tile.plane_w - tile.w, tile.plane_w,
                         to + group * tile.plane_h * tile.plane_w * kLanes);
            }
            to += tile.plane_floats();
          }
          const GradientArgs args{x_panel, dy_panel, lines.data(), lines.data() + lines.size()};
          const std::uint32_t* offsets = slice.offsets.data();
          const std::uint32_t* rows = slice.rows.data();
          for (GradientRun run : slice.runs) {
            const std::int64_t together = kernels_.gradient_rows(run.slots);
            run.offsets = offsets;
            run.rows = rows;
            run.sums = slice_sums;
            kernels_.weight_gradient(args, run);
            offsets += run.blocks * together * run.slots;
            rows += run.blocks * together;
            slice_sums += run.blocks * ceil_div(together * run.slots, kLanes) * kLanes;
          }
        }
      }
    }
  }

  const float* sum = sums;
  for (const Slice& slice : task.slices) {
    for (const std::uint32_t place : slice.places) {
      if (place != kNoPlace) dvalues[place] = accumulate ? dvalues[place] + *sum : *sum;
      ++sum;
    }
  }
}

void WeightGradient::run(ThreadPool& pool, const Shape& shape, const float* x, const float* dy, float* dvalues,
                         bool accumulate) const {
  const Shape out = output_shape(shape);
  if (nnz() == 0) return;
  if (element_count(out, Layout::nchw) == 0) {
    if (!accumulate) std::fill_n(dvalues, nnz(), 0.0F);
    return;
  }
  const auto packing = packing_of(out);
  pool.parallel_for(static_cast<std::int64_t>(packing->tasks.size()), [&](std::int64_t i) {
    run_task(*packing, packing->tasks[static_cast<std::size_t>(i)], shape, out, x, dy, dvalues, accumulate);
  });
}

}  // namespace sift::cpu
