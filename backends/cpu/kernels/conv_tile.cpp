#include "conv_tile.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "aligned_buffer.h"
#include "tile_output.h"

namespace sift::cpu {
namespace {

// Rows whose sums go from the last slice's kernel to the epilogue while they are in the first-level cache.
constexpr std::int64_t kEpilogueRows = 8;
// Weights of a row that take longer to multiply than the lines of its output do to come.
constexpr std::int64_t kLongRow = 128;
// Rows between two bits of prefetching.
constexpr std::int64_t kPrefetchRows = 16;

struct Scratch {
  AlignedBuffer panel;
  AlignedBuffer acc;
  std::vector<Gather> full;
  std::vector<Gather> masked;
  std::vector<std::ptrdiff_t> fresh;  // places in a channel that the tile above did not read
  std::vector<Scatter> scatters;
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// Brings the input of the next panel into the second-level cache bit by bit while the present one is multiplied: asked
// for all at once, the requests would fill the queues and wait like the copy itself.
class Prefetcher {
 public:
  Prefetcher() = default;
  Prefetcher(const std::vector<std::ptrdiff_t>& places, const float* source, std::ptrdiff_t source_stride,
             std::int64_t channels, std::int64_t steps)
      : places_(&places),
        source_(reinterpret_cast<std::uintptr_t>(source)),
        stride_(static_cast<std::uintptr_t>(source_stride) * sizeof(float)),
        left_(channels),
        per_step_((channels + steps - 1) / std::max<std::int64_t>(steps, 1)) {}

  // One part of the channels. The addresses may lie outside the tensor: prefetching them does nothing.
  void step() {
    for (const std::int64_t until = std::max<std::int64_t>(left_ - per_step_, 0); left_ > until; --left_) {
      for (const std::ptrdiff_t place : *places_) {
        const std::uintptr_t address = source_ + static_cast<std::uintptr_t>(place) * sizeof(float);
        __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 2);
      }
      source_ += stride_;
    }
  }

 private:
  const std::vector<std::ptrdiff_t>* places_ = nullptr;
  std::uintptr_t source_ = 0;
  std::uintptr_t stride_ = 0;
  std::int64_t left_ = 0;
  std::int64_t per_step_ = 0;
};

// Lanes l < count with 0 <= first + l * stride < size.
std::uint32_t lanes_inside(std::int64_t first, std::int64_t stride, std::int64_t count, std::int64_t size) {
  std::uint32_t mask = 0;
  for (std::int64_t lane = 0; lane < count; ++lane) {
    const std::int64_t at = first + lane * stride;
    if (at >= 0 && at < size) mask |= 1U << lane;
  }
  return mask;
}

// Fills scratch.full, .masked and .fresh; true if some of the panel's lanes lie in no entry, and must be zero.
bool list_gathers(const ConvJob& job, const ConvTile& place, Scratch& scratch) {
  const ConvGeometry& g = job.geometry;
  const ConvTensors& t = job.tensors;
  const TileShape& tile = job.tile;
  const bool planes = t.layout == Layout::planes;
  const std::int64_t floats_per_pixel = planes ? 1 : kLanes;
  const std::int64_t lanes_w = planes ? tile.lanes_w : 1;
  const std::uint32_t all = (1U << tile.lanes_w) - 1U;
  scratch.full.clear();
  scratch.masked.clear();
  scratch.fresh.clear();
  const std::int64_t seen = place.row == 0 ? -1
                                           : (place.row * tile.lanes_h - 1) * g.stride_h +
                                                 (g.kernel_h - 1) * g.dilation_h - g.pad_top;
  bool has_zeros = false;
  std::size_t copy_index = 0;
  for (const TapAxis::Copy& copy_y : job.panel.y.copies) {
    for (const TapAxis::Copy& copy_x : job.panel.x.copies) {
      const std::int64_t copy_block = job.panel.copy_blocks[copy_index++];
      const std::int64_t cols = tile.cols + copy_x.shifts;
      for (std::int64_t row = 0; row < tile.rows + copy_y.shifts; ++row) {
        for (std::int64_t col = 0; col < cols; ++col) {
          const std::int64_t x = (place.col + col) * tile.outputs_w() * g.stride_w + copy_x.first - g.pad_left;
          const std::uint32_t mask = lanes_inside(x, g.stride_w, lanes_w, t.in_w);
          for (std::int64_t image = 0; image < tile.images; ++image) {
            const std::int64_t unit = place.unit + image;
            const std::int64_t block = copy_block + row * job.panel.pitch + col * tile.images + image;
            for (std::int64_t lane_row = 0; lane_row < tile.lanes_h; ++lane_row) {
              const std::int64_t y =
                  ((place.row + row) * tile.lanes_h + lane_row) * g.stride_h + copy_y.first - g.pad_top;
              if (mask == 0 || y < 0 || y >= t.in_h || unit >= t.units) {
                has_zeros = true;
                continue;
              }
              const std::int64_t source =
                  (unit * t.in_channels * t.in_h * t.in_w + y * t.in_w + x) * floats_per_pixel;
              const Gather entry{source, static_cast<std::uint32_t>(block * kLanes + lane_row * tile.lanes_w), mask};
              (!planes || mask == all ? scratch.full : scratch.masked).push_back(entry);
              // In planes the copies along x are the same cache lines.
              if (y > seen && (!planes || &copy_x == &job.panel.x.copies.front())) scratch.fresh.push_back(source);
            }
          }
        }
      }
    }
  }
  return has_zeros;
}

}  // namespace

void run_tile(const ConvJob& job, const ConvTile& place, const ConvTile& next_place, std::int64_t row_begin,
              std::int64_t row_end, const float* in, const float* residual, float* out) {
  Scratch& scratch = thread_scratch();
  const ConvTensors& t = job.tensors;
  const bool planes = t.layout == Layout::planes;
  const std::int64_t lane_factor = planes ? 1 : kLanes;
  const std::int64_t in_plane = t.in_h * t.in_w * lane_factor;
  const std::int64_t out_plane = t.out_h * t.out_w * lane_factor;
  const std::int64_t acc_row = job.tile.blocks() * kLanes;
  const std::int64_t channel_floats = job.panel.blocks_per_channel * kLanes;
  const std::int64_t slice_channels = job.slices.front().channels;
  const std::int64_t next_tile =
      (next_place.unit - place.unit) * t.in_channels * in_plane +
      ((next_place.row - place.row) * job.tile.lanes_h * job.geometry.stride_h * t.in_w +
       (next_place.col - place.col) * job.tile.outputs_w() * job.geometry.stride_w) * lane_factor;

  float* const panel = scratch.panel.floats(static_cast<std::size_t>(slice_channels * channel_floats));
  float* const acc = scratch.acc.floats(static_cast<std::size_t>((row_end - row_begin) * acc_row));
  if (list_gathers(job, place, scratch)) {
    // The same places are zero in every channel of every slice: once is enough.
    std::memset(panel, 0, static_cast<std::size_t>(slice_channels * channel_floats) * sizeof(float));
  }
  list_scatters(job, place, scratch.scatters);
  const std::optional<DirectOutput> direct = direct_output(job, scratch.scatters, out);

  const bool long_rows = job.slices.size() > 1 || static_cast<std::int64_t>(job.slices.front().values.size()) >=
                                                      kLongRow * job.row_count;

  RowsArgs rows{};
  rows.panel = reinterpret_cast<const std::byte*>(panel);
  rows.pitch = job.panel.pitch * kLanes * static_cast<std::ptrdiff_t>(sizeof(float));
  rows.one_tap = job.geometry.kernel_h * job.geometry.kernel_w == 1;
  rows.turns = static_cast<std::uint32_t>(job.geometry.kernel_w);
  rows.turn_lanes = job.turn_lanes.data();
  EpilogueArgs epilogue{};
  epilogue.entries = scratch.scatters.data();
  epilogue.count = static_cast<std::uint32_t>(scratch.scatters.size());
  epilogue.acc_stride = acc_row;
  epilogue.out_stride = out_plane;
  epilogue.activation = job.activation;

  for (const PackedSlice& slice : job.slices) {
    GatherArgs gather{};
    gather.width = static_cast<std::uint32_t>(planes ? job.tile.lanes_w : kLanes);
    gather.lane_stride = static_cast<std::uint32_t>(planes ? job.geometry.stride_w : 1);
    gather.source = in + (job.first_in_channel + slice.first_channel) * in_plane;
    gather.source_stride = in_plane;
    gather.target = panel;
    gather.target_stride = channel_floats;
    gather.channels = static_cast<std::uint32_t>(slice.channels);
    gather.entries = scratch.full.data();
    gather.count = static_cast<std::uint32_t>(scratch.full.size());
    if (gather.count > 0) job.kernels.gather_full(gather);
    gather.entries = scratch.masked.data();
    gather.count = static_cast<std::uint32_t>(scratch.masked.size());
    if (gather.count > 0) job.kernels.gather_masked(gather);

    slice.describe(rows);
    const float* const bias = &slice == &job.slices.front() ? job.bias : nullptr;
    const bool ordered = !slice.order.empty();
    const bool last = &slice == &job.slices.back();
    const std::int64_t step = last ? kEpilogueRows : kPrefetchRows;
    const std::int64_t steps = (row_end - row_begin + step - 1) / step;
    // After the last slice comes the first of the next tile.
    Prefetcher next = last ? Prefetcher(scratch.fresh, in + job.first_in_channel * in_plane + next_tile, in_plane,
                                        slice_channels, steps)
                           : Prefetcher(scratch.fresh, gather.source + slice.channels * in_plane, in_plane,
                                        (&slice)[1].channels, steps);
    for (std::int64_t row = row_begin; row < row_end; row = rows.row_end) {
      // In order, a row is a place: what stands there belongs to another row of the band.
      const std::int64_t origin = ordered ? row / job.band_rows * job.band_rows : row;
      const std::int64_t end = std::min(ordered ? std::min(row + step, origin + job.band_rows) : row + step, row_end);
      next.step();
      rows.acc = acc + (origin - row_begin) * acc_row;
      rows.bias = bias == nullptr || !ordered ? bias : bias + origin;
      rows.row_begin = static_cast<std::uint32_t>(row);
      rows.row_end = static_cast<std::uint32_t>(end);
      const std::int64_t stored = std::min(end, job.row_count) - row;
      const std::int64_t first = (job.first_out_channel + origin) * out_plane;
      // Rows beyond the last must not be stored: they are only in acc.
      const bool is_direct = last && direct.has_value() && stored == end - row;
      rows.direct = {};
      epilogue.order = ordered ? slice.order.data() + row : nullptr;
      // Where rows are long, the lines that they go to are asked for before; where they are short, asking takes longer.
      // What is added to them is read, and waited for, as soon as a row is done.
      const bool ask_for_output = last && (!is_direct || (long_rows && !direct->streams));
      const bool ask_for_residual = last && residual != nullptr;
      if (ask_for_output || ask_for_residual) {
        for (std::int64_t i = 0; i < stored; ++i) {
          const std::int64_t plane = first + (ordered ? epilogue.order[i] : i) * out_plane;
          for (const Scatter& entry : scratch.scatters) {
            if (ask_for_output) __builtin_prefetch(out + plane + entry.target, 1);
            if (ask_for_residual) __builtin_prefetch(residual + plane + entry.target, 0);
          }
        }
      }
      if (is_direct) {
        const std::ptrdiff_t at = first + scratch.scatters.front().target;
        rows.direct = *direct;
        rows.direct.out = out + at;
        rows.direct.residual = residual == nullptr ? nullptr : residual + at;
        job.rows(rows);
        continue;
      }
      job.rows(rows);
      if (last && stored > 0) {
        epilogue.acc = rows.acc;
        epilogue.rows = static_cast<std::uint32_t>(stored);
        epilogue.out = out + first;
        epilogue.residual = residual == nullptr ? nullptr : residual + first;
        job.kernels.epilogue(epilogue);
      }
    }
  }
  if (direct.has_value() && direct->streams) job.kernels.end_streams();
}

}  // namespace sift::cpu
