#include "weights/panel.h"

#include <algorithm>

namespace sift::cpu {

TapAxis::TapAxis(std::int64_t kernel, std::int64_t stride, std::int64_t dilation, std::int64_t extent,
                 std::int64_t tile) {
  const std::int64_t period = extent * stride;
  for (std::int64_t tap = 0; tap < kernel; ++tap) {
    const std::int64_t at = tap * dilation;
    const auto shared = std::ranges::find_if(copies, [&](const Copy& copy) {
      // Far taps get a copy of their own where that is smaller than all the blocks between them.
      return (at - copy.first) % period == 0 && (at - copy.first) / period - copy.shifts <= tile;
    });
    if (shared == copies.end()) {
      taps.push_back({static_cast<std::int64_t>(copies.size()), 0});
      copies.push_back({at, 0});
    } else {
      shared->shifts = (at - shared->first) / period;
      taps.push_back({shared - copies.begin(), shared->shifts});
    }
  }
}

std::int64_t TapAxis::most_shifts() const { return std::ranges::max_element(copies, {}, &Copy::shifts)->shifts; }

AxisBlocks::AxisBlocks(const TapAxis& axis, std::int64_t tile)
    : copies(std::ssize(axis.copies)), most_shifts(axis.most_shifts()) {
  for (const TapAxis::Copy& copy : axis.copies) blocks += tile + copy.shifts;
}

PanelSize::PanelSize(const AxisBlocks& y, const AxisBlocks& x, const TileShape& tile)
    : pitch((tile.cols + x.most_shifts) * tile.images),
      blocks_per_channel(y.blocks * x.copies * pitch),
      channel_floats(blocks_per_channel * (tile.taps_overlap ? tile.panel_w() : tile.lanes())) {}

TapAxis taps_along_y(const ConvGeometry& geometry, const TileShape& tile) {
  return {geometry.kernel_h, geometry.stride_h, geometry.dilation_h, tile.lanes_h, tile.rows};
}

TapAxis taps_along_x(const ConvGeometry& geometry, const TileShape& tile) {
  if (tile.rotates() || tile.taps_overlap) return TapAxis(geometry.kernel_w);
  // Where rows follow each other, a block's neighbour has to be to the right of it: each tap has a copy of its own.
  constexpr std::int64_t kNone = -1;
  return {geometry.kernel_w, geometry.stride_w, geometry.dilation_w, tile.lanes_w, tile.wraps_rows ? kNone : tile.cols};
}

PanelShape::PanelShape(const ConvGeometry& geometry, const TileShape& tile)
    : y(taps_along_y(geometry, tile)),
      x(taps_along_x(geometry, tile)),
      pitch((tile.cols + x.most_shifts()) * tile.images),
      blocks_per_channel(0),
      block_floats(tile.taps_overlap ? tile.panel_w() : tile.lanes()),
      channel_floats(0),
      images_(tile.images),
      block_width_(block_floats),
      tap_step_(tile.taps_overlap ? geometry.dilation_w : 0) {
  for (const TapAxis::Copy& copy : y.copies) {
    for (std::size_t i = 0; i < x.copies.size(); ++i) {
      copy_blocks.push_back(blocks_per_channel);
      blocks_per_channel += (tile.rows + copy.shifts) * pitch;
    }
  }
  channel_floats = blocks_per_channel * block_floats;
}

void PanelShape::make_channels_innermost(std::int64_t channels) {
  block_floats = channels * kLanes;
  channel_floats = kLanes;
}

std::int64_t PanelShape::tap_floats(std::int64_t tap_y, std::int64_t tap_x) const {
  const TapAxis::Tap& ty = y.taps[static_cast<std::size_t>(tap_y)];
  const TapAxis::Tap& tx = x.taps[static_cast<std::size_t>(tap_x)];
  const auto copy = static_cast<std::size_t>(ty.copy) * x.copies.size() + static_cast<std::size_t>(tx.copy);
  return (copy_blocks[copy] + ty.shift * pitch + tx.shift * images_) * block_floats + tap_x * tap_step_;
}

std::vector<std::ptrdiff_t> PanelShape::tap_bytes() const {
  std::vector<std::ptrdiff_t> bytes;
  for (std::int64_t tap_y = 0; tap_y < std::ssize(y.taps); ++tap_y) {
    for (std::int64_t tap_x = 0; tap_x < std::ssize(x.taps); ++tap_x) {
      bytes.push_back(static_cast<std::ptrdiff_t>(tap_floats(tap_y, tap_x) * std::int64_t{sizeof(float)}));
    }
  }
  return bytes;
}

std::int64_t kernel_rows(const TileShape& tile, std::int64_t pitch) {
  return pitch == tile.cols * tile.images ? 1 : tile.rows;
}

std::vector<std::int32_t> lanes_of_rotations(const ConvGeometry& geometry, const TileShape& tile) {
  std::vector<std::int32_t> lanes;
  for (std::int64_t tap = 0; tap < (tile.rotates() ? geometry.kernel_w : 0); ++tap) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const std::int64_t row = lane / tile.lanes_w * tile.lanes_w;
      lanes.push_back(static_cast<std::int32_t>(row + (lane + tap * geometry.dilation_w) % tile.lanes_w));
    }
  }
  return lanes;
}

}  // namespace sift::cpu
