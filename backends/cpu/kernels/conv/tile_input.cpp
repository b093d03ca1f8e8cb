#include "conv/tile_input.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace sift::cpu {
namespace {

// The lowest bits.
std::uint32_t first_bits(std::int64_t count) { return (1U << count) - 1U; }

// Bits of the lanes l < count with 0 <= first + l * stride < size.
std::uint32_t lanes_inside(std::int64_t first, std::int64_t stride, std::int64_t count, std::int64_t size) {
  // Nearly all runs lie inside, and short rows have many of them: nothing is divided for these.
  if (first >= 0 && first + (count - 1) * stride < size) return first_bits(count);
  if (stride == 0) return 0;
  const std::int64_t begin = first >= 0 ? 0 : std::min(ceil_div(-first, stride), count);
  const std::int64_t end = first >= size ? 0 : std::min(ceil_div(size - first, stride), count);
  return first_bits(end) & ~first_bits(begin);
}

}  // namespace

void list_gathers(const ConvJob& job, const ConvTile& place, TileInput& input) {
  const ConvGeometry& g = job.geometry;
  const ConvTensors& t = job.tensors;
  const TileShape& tile = job.tile;
  const bool nchw = t.layout == Layout::nchw;
  const std::int64_t floats_per_pixel = nchw ? 1 : kLanes;
  const std::int64_t lane_stride = nchw ? g.stride_w : 0;
  const std::uint32_t all = nchw ? (1U << tile.panel_w()) - 1U : 1U;
  input.full.clear();
  input.masked.clear();
  input.lines.clear();
  const std::int64_t channel_lanes = job.panel.blocks_per_channel * tile.lanes_h * tile.panel_w();
  std::int64_t lanes_filled = 0;
  std::size_t copy_index = 0;
  for (const TapAxis::Copy& copy_y : job.panel.y.copies) {
    for (const TapAxis::Copy& copy_x : job.panel.x.copies) {
      const std::int64_t copy_block = job.panel.copy_blocks[copy_index++];
      list_runs(t, tile, place, tile.cols + copy_x.shifts, input.runs);
      for (std::int64_t row = 0; row < tile.rows + copy_y.shifts; ++row) {
        for (const LaneRun& run : input.runs) {
          const std::int64_t x = run.corner.x * g.stride_w + copy_x.first - g.pad_left;
          const std::int64_t lanes_read = tile.taps_overlap ? tile.panel_w() : run.lanes;
          const std::uint32_t mask = lanes_inside(x, lane_stride, lanes_read, t.in_w) << run.lane;
          if (mask == 0) continue;
          const std::int64_t block = copy_block + row * job.panel.pitch + run.block;
          for (std::int64_t lane_row = 0; lane_row < tile.lanes_h; ++lane_row) {
            const std::int64_t y =
                (run.corner.y + row * tile.lanes_h + lane_row) * g.stride_h + copy_y.first - g.pad_top;
            if (y < 0 || y >= t.in_h) continue;
            const std::int64_t source =
                (run.corner.unit * t.in_channels * t.in_h * t.in_w + y * t.in_w + x) * floats_per_pixel;
            const std::int64_t target = block * job.panel.block_floats + lane_row * tile.panel_w();
            const Gather entry{source - run.lane * lane_stride, static_cast<std::uint32_t>(target), mask};
            (mask == all ? input.full : input.masked).push_back(entry);
            lanes_filled += std::popcount(mask);
            // In NCHW the copies along x are the same cache lines. What the tile above has read, too, has left the
            // second-level cache by now where weights and sums are many.
            if (!nchw || &copy_x == &job.panel.x.copies.front()) input.lines.push_back(source);
          }
        }
      }
    }
  }
  input.has_zeros = lanes_filled < channel_lanes;
}

}  // namespace sift::cpu
