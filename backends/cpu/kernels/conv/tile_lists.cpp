#include "conv/tile_lists.h"

#include <algorithm>
#include <cstdint>

#include "conv/tile_output.h"

namespace sift::cpu {
namespace {

struct Scratch {
  TileLists at_border;
  std::vector<LaneRun> runs;
  // Of the tile that was listed last inside of an image.
  TileLists inside;
  std::uint64_t plan = 0;
  ConvTensors tensors;
  Corner corner{};
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// Whether along an axis the pixels that copies read are all there, for outputs from `corner` on. `lanes` of a block are
// adjacent, of which `outputs` are its own.
bool reads_inside(const TapAxis& axis, std::int64_t corner, std::int64_t blocks, std::int64_t outputs,
                  std::int64_t lanes, std::int64_t stride, std::int64_t pad, std::int64_t size) {
  return std::ranges::all_of(axis.copies, [&](const TapAxis::Copy& copy) {
    const std::int64_t first = corner * stride + copy.first - pad;
    const std::int64_t last = first + ((blocks + copy.shifts - 1) * outputs + lanes - 1) * stride;
    return first >= 0 && last < size;
  });
}

bool is_inside(const ConvJob& job, const Corner& corner) {
  const ConvTensors& t = job.tensors;
  const ConvGeometry& g = job.geometry;
  const TileShape& tile = job.tile;
  const std::int64_t lanes_w = t.layout == Layout::nchw ? tile.lanes_w : 1;
  const std::int64_t read_w = t.layout == Layout::nchw ? tile.panel_w() : 1;
  return !tile.wraps_rows && corner.unit + tile.images <= t.units && corner.y + tile.rows * tile.lanes_h <= t.out_h &&
         corner.x + tile.cols * tile.outputs_w() <= t.out_w &&
         reads_inside(job.panel.y, corner.y, tile.rows, tile.lanes_h, tile.lanes_h, g.stride_h, g.pad_top, t.in_h) &&
         reads_inside(job.panel.x, corner.x, tile.cols, tile.outputs_w(), std::max(lanes_w, read_w), g.stride_w,
                      g.pad_left, t.in_w);
}

void list(const ConvJob& job, const ConvTile& place, std::vector<LaneRun>& runs, TileLists& lists) {
  list_gathers(job, place, lists.input);
  list_runs(job.tensors, job.tile, place, job.tile.cols, runs);
  list_scatters(job, runs, lists.scatters);
}

}  // namespace

ListedTile list_tile(const ConvJob& job, const ConvTile& place) {
  Scratch& scratch = thread_scratch();
  const ConvTensors& t = job.tensors;
  const Corner corner = corner_of(t, job.tile, place);
  if (!is_inside(job, corner)) {
    list(job, place, scratch.runs, scratch.at_border);
    return {scratch.at_border, 0, 0};
  }
  if (scratch.plan != job.plan || scratch.tensors != t) {
    scratch.plan = 0;  // if memory ends meanwhile
    list(job, place, scratch.runs, scratch.inside);
    scratch.plan = job.plan;
    scratch.tensors = t;
    scratch.corner = corner;
    return {scratch.inside, 0, 0};
  }
  const std::int64_t units = corner.unit - scratch.corner.unit;
  const std::int64_t rows = corner.y - scratch.corner.y;
  const std::int64_t columns = corner.x - scratch.corner.x;
  const std::int64_t floats = t.layout == Layout::nchw ? 1 : kLanes;
  const std::int64_t in =
      units * t.in_channels * t.in_h * t.in_w + rows * job.geometry.stride_h * t.in_w + columns * job.geometry.stride_w;
  const std::int64_t out = units * t.out_channels * t.out_plane + rows * t.out_row + columns * t.out_step;
  return {scratch.inside, in * floats, out * floats};
}

}  // namespace sift::cpu
