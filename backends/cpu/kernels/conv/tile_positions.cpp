#include "conv/tile_positions.h"

#include <algorithm>

namespace sift::cpu {

TileCounts count_tiles(const TileShape& tile, std::int64_t units, std::int64_t out_h, std::int64_t out_w) {
  const std::int64_t strips = ceil_div(out_h, tile.rows * tile.lanes_h);
  if (tile.wraps_rows) return {1, ceil_div(units * strips * out_w, tile.cols * tile.lanes_w), 1};
  return {strips, ceil_div(out_w, tile.cols * tile.outputs_w()), ceil_div(units, tile.images)};
}

Corner corner_of(const ConvTensors& tensors, const TileShape& tile, const ConvTile& place) {
  if (!tile.wraps_rows) return {place.unit, place.row * tile.lanes_h, place.col * tile.outputs_w()};
  const std::int64_t strips = ceil_div(tensors.out_h, tile.rows);
  const std::int64_t column = place.col * tile.lanes_w;
  const std::int64_t strip = column / tensors.out_w;
  return {strip / strips, strip % strips * tile.rows, column % tensors.out_w};
}

void list_runs(const ConvTensors& tensors, const TileShape& tile, const ConvTile& place, std::int64_t cols,
               std::vector<LaneRun>& runs) {
  runs.clear();
  const std::int64_t lanes_w = tensors.layout == Layout::nchw ? tile.lanes_w : 1;
  for (std::int64_t col = 0; col < cols; ++col) {
    Corner corner = corner_of(tensors, tile, {place.row, place.col + col, place.unit});
    if (!tile.wraps_rows) {
      const std::int64_t outputs = std::min(tile.outputs_w(), tensors.out_w - corner.x);
      for (std::int64_t image = 0; image < tile.images && corner.unit < tensors.units; ++image, ++corner.unit) {
        runs.push_back({col * tile.images + image, corner, 0, lanes_w, outputs});
      }
      continue;
    }
    for (std::int64_t lane = 0; lane < lanes_w && corner.unit < tensors.units;) {
      const std::int64_t lanes = std::min(lanes_w - lane, tensors.out_w - corner.x);
      runs.push_back({col, corner, lane, lanes, lanes});
      lane += lanes;
      // What is left of the block holds the beginning of the strip below, or of the next image's first.
      corner = {corner.unit, corner.y + tile.rows, 0};
      if (corner.y >= tensors.out_h) corner = {corner.unit + 1, 0, 0};
    }
  }
}

}  // namespace sift::cpu
