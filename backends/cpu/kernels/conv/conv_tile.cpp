#include "conv/conv_tile.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/microarchitecture.h"
#include "base/prefetcher.h"
#include "conv/input_ahead.h"
#include "conv/tile_lists.h"
#include "conv/tile_output.h"

namespace sift::cpu {
namespace {

// Rows whose sums go from the last slice's kernel to the epilogue while they are in the first-level cache.
constexpr std::int64_t kEpilogueRows = 8;
// Weights of a row that take longer to multiply than the lines of its output do to come.
constexpr std::int64_t kLongRow = 128;
// Rows between two bits of prefetching: each time, the kernel of the rows ends and starts again.
constexpr std::int64_t kPrefetchRows = 64;
// Bits of prefetching per slice, if it has eight rows for each: where rows are few, a burst would still be under way.
constexpr std::int64_t kLeastSteps = 8;

struct Scratch {
  AlignedBuffer panel;
  AlignedBuffer acc;
  std::vector<std::ptrdiff_t> places;  // of prefetching
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// Floats from a channel's first to where the tile's first tap of its first lane would read.
std::ptrdiff_t source_of(const ConvJob& job, const ConvTile& place) {
  const ConvTensors& t = job.tensors;
  const Corner corner = corner_of(t, job.tile, place);
  return (corner.unit * t.in_channels * t.in_h * t.in_w + corner.y * job.geometry.stride_h * t.in_w +
          corner.x * job.geometry.stride_w) *
         (t.layout == Layout::nchw ? 1 : kLanes);
}

// Whether code prefetches the input of the next slice or tile. Elsewhere it waits for its operands where lines come at
// the same time: both need the core's few buffers for lines under way, and copying into the panel asks for sixteen at
// once. Zen's have more of them, and images in the lanes come from further away.
bool code_prefetches_input(const ConvJob& job) {
  const bool has_taps = job.geometry.kernel_h * job.geometry.kernel_w > 1;
  return has_taps && job.tensors.layout == Layout::nchw_n16 && is_zen4_or_newer(detected_microarchitecture());
}

// Copies what the tile reads of this many channels, the first of which is at `source`.
void fill_panel(const ConvJob& job, const TileInput& input, const float* source, std::int64_t channels, float* panel) {
  const ConvTensors& t = job.tensors;
  const bool nchw = t.layout == Layout::nchw;
  GatherArgs gather{};
  gather.width = static_cast<std::uint32_t>(nchw ? job.tile.panel_w() : kLanes);
  gather.lane_stride = static_cast<std::uint32_t>(nchw ? job.geometry.stride_w : 1);
  gather.source = source;
  gather.source_stride = t.in_h * t.in_w * (nchw ? 1 : kLanes);
  gather.target = panel;
  gather.target_stride = job.panel.channel_floats;
  gather.channels = static_cast<std::uint32_t>(channels);
  gather.entries = input.full.data();
  gather.count = static_cast<std::uint32_t>(input.full.size());
  if (gather.count > 0) job.kernels.gather_full(gather);
  gather.entries = input.masked.data();
  gather.count = static_cast<std::uint32_t>(input.masked.size());
  if (gather.count > 0) job.kernels.gather_masked(gather);
}

}  // namespace

void run_tile(const ConvJob& job, const ConvTile& place, const ConvTile& next_place, std::int64_t row_begin,
              std::int64_t row_end, const float* in, const float* residual, float* out) {
  Scratch& scratch = thread_scratch();
  const ConvTensors& t = job.tensors;
  const bool nchw = t.layout == Layout::nchw;
  const std::int64_t lane_factor = nchw ? 1 : kLanes;
  const std::int64_t in_plane = t.in_h * t.in_w * lane_factor;
  const std::int64_t out_plane = t.out_plane * lane_factor;
  const std::int64_t acc_row = job.tile.blocks() * job.tile.lanes();
  const bool grouped = !job.packed.front().code.empty();
  const bool dense = job.packed.front().columns > 0;
  const std::int64_t slices = ceil_div(job.channels, job.slice_channels);
  if (grouped) row_end = std::min(row_end, job.row_count);
  const auto panel_floats = static_cast<std::size_t>(job.panel.floats(job.slice_channels));
  const std::ptrdiff_t next_tile = source_of(job, next_place) - source_of(job, place);

  const bool ordered = !job.packed.front().order.empty();
  // Zeros for the padding of lists in sell: as much as an entry reads.
  const std::size_t behind_floats =
      ordered ? static_cast<std::size_t>(job.tile.rows * job.panel.pitch * job.panel.block_floats) : 0;
  float* const panel = job.in_place ? nullptr : scratch.panel.floats(panel_floats + behind_floats);
  float* const acc = scratch.acc.floats(static_cast<std::size_t>((row_end - row_begin + job.band_rows) * acc_row));
  const ListedTile listed = list_tile(job, place);
  const TileInput& input = listed.lists.input;
  const std::vector<Scatter>& scatters = listed.lists.scatters;
  const float* const listed_in = in + listed.in;
  out += listed.out;
  if (residual != nullptr) residual += listed.out;
  if (input.has_zeros && !job.in_place) {
    // The same places are zero in every channel of every slice: once is enough.
    std::memset(panel, 0, panel_floats * sizeof(float));
  }
  if (ordered) std::fill_n(panel + panel_floats, behind_floats, 0.0F);
  const std::optional<DirectOutput> direct = direct_output(job, scatters, out);

  const bool long_rows =
      slices > 1 || static_cast<std::int64_t>(job.packed.front().values.size()) >= kLongRow * job.row_count;

  RowsArgs rows{};
  rows.block_bytes = job.panel.block_floats * bytes_of(job.dtype);
  rows.pitch = job.panel.pitch * rows.block_bytes;
  const std::int64_t tile_rows = kernel_rows(job.tile, job.panel.pitch);
  rows.tile_rows = static_cast<std::uint32_t>(tile_rows);
  // In place nothing follows the last images.
  rows.tile_columns = static_cast<std::uint32_t>(job.in_place ? std::min(job.tile.images, t.units - place.unit)
                                                              : job.tile.blocks() / tile_rows);
  rows.group_rows = static_cast<std::uint32_t>(job.band_rows);
  rows.one_tap = job.geometry.kernel_h * job.geometry.kernel_w == 1;
  rows.scales_offsets = job.scales_lists;
  rows.lists_per_row = static_cast<std::uint32_t>(job.geometry.kernel_w);
  rows.rotated_lanes = job.rotated_lanes.data();
  rows.taps = job.taps.data();
  EpilogueArgs epilogue{};
  epilogue.entries = scatters.data();
  epilogue.count = static_cast<std::uint32_t>(scatters.size());
  epilogue.acc_stride = grouped ? kLanes : acc_row;
  epilogue.out_stride = out_plane;
  epilogue.activation = job.activation;

  for (std::int64_t number = 0; number < slices; ++number) {
    const PackedSlice& packed = job.packed[grouped || dense ? 0 : static_cast<std::size_t>(number)];
    const std::int64_t first_channel = number * job.slice_channels;
    const std::int64_t end_channel = std::min(first_channel + job.slice_channels, job.channels);
    const std::int64_t first_plane = (job.first_in_channel + first_channel) * in_plane;
    if (job.in_place) {
      rows.panel = reinterpret_cast<const std::byte*>(in + first_plane + place.unit * t.in_channels * in_plane);
    } else {
      fill_panel(job, input, listed_in + first_plane, end_channel - first_channel, panel);
      rows.panel = reinterpret_cast<const std::byte*>(panel);
    }

    packed.describe(rows);
    if (dense) {
      const std::int64_t taps = job.geometry.kernel_h * job.geometry.kernel_w;
      rows.offsets = job.offsets.data();
      rows.values += first_channel * taps * 4;
      rows.columns = static_cast<std::uint32_t>((end_channel - first_channel) * taps);
    }
    rows.first_channel = first_channel;
    rows.first_unit = static_cast<std::uint32_t>(first_channel / job.unit_channels);
    rows.end_unit = static_cast<std::uint32_t>(ceil_div(end_channel, job.unit_channels));
    const float* const bias = number == 0 ? job.bias : nullptr;
    const bool last = number + 1 == slices;
    const std::int64_t step = grouped ? job.band_rows
                              : last  ? kEpilogueRows
                                      : std::min(kPrefetchRows, ceil_div(row_end - row_begin, kLeastSteps * 8) * 8);
    // After the last slice comes the first of the next tile.
    Prefetcher next;
    const std::optional<Prefetcher> ahead =
        job.prefetches_in_runs ? input_ahead(job, place, number, slices, in, scratch.places) : std::nullopt;
    if (ahead.has_value()) {
      next = *ahead;
    } else if (!grouped || code_prefetches_input(job)) {
      next = last ? Prefetcher(input.lines, listed_in + job.first_in_channel * in_plane + next_tile, in_plane,
                               job.slice_channels)
                  : Prefetcher(input.lines, listed_in + (job.first_in_channel + end_channel) * in_plane, in_plane,
                               std::min(job.slice_channels, job.channels - end_channel));
    }
    const std::int64_t per_step = ceil_div(next.left(), ceil_div(row_end - row_begin, step));
    rows.ahead = grouped ? &next : nullptr;
    rows.ahead_lines = per_step;
    for (std::int64_t row = row_begin; row < row_end; row = rows.row_end) {
      // In order, a row is a place: what stands there belongs to another row of the band.
      const std::int64_t origin = ordered ? row / job.band_rows * job.band_rows : row;
      const std::int64_t end = std::min(ordered ? std::min(row + step, origin + job.band_rows) : row + step, row_end);
      if (!grouped) next.step(per_step);
      rows.acc = acc + (origin - row_begin) * acc_row;
      rows.bias = bias == nullptr || !ordered ? bias : bias + origin;
      rows.row_begin = static_cast<std::uint32_t>(row);
      rows.row_end = static_cast<std::uint32_t>(end);
      const std::int64_t stored = std::min(end, job.row_count) - row;
      const std::int64_t first = (job.first_out_channel + origin) * out_plane;
      // Rows beyond the last must not be stored: they are only in acc.
      const bool is_direct = last && direct.has_value() && stored == end - row;
      rows.direct = {};
      epilogue.order = ordered ? packed.order.data() + row : nullptr;
      // Where rows are long, the lines that they go to are prefetched; where they are short, prefetching takes longer.
      // What is added to them is read, and waited for, as soon as a row is done.
      const bool prefetches = last && !grouped;  // code does so by itself; its groups have as many lines as a burst
      const bool prefetch_output = prefetches && (!is_direct || (long_rows && !direct->non_temporal));
      const bool prefetch_residual = prefetches && residual != nullptr;
      if (prefetch_output || prefetch_residual) {
        for (std::int64_t i = 0; i < stored; ++i) {
          const std::int64_t plane = first + (ordered ? epilogue.order[i] : i) * out_plane;
          for (const Scatter& entry : scatters) {
            if (prefetch_output) __builtin_prefetch(out + plane + entry.target, 1);
            if (prefetch_residual) __builtin_prefetch(residual + plane + entry.target, 0);
          }
        }
      }
      if (is_direct) {
        const std::ptrdiff_t at = first + scatters.front().target;
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
  if (direct.has_value() && direct->non_temporal) job.kernels.end_non_temporal_stores();
}

}  // namespace sift::cpu
