// How a convolution is cut into tiles, and where its taps find their operands in a tile's panel.
//
// A block is 16 lanes: 16 images at one pixel (NCHWn16), or lanes_h x lanes_w pixels of one image (NCHW), which may
// be 8. A tile is rows x cols blocks of `images` images or groups of 16. A panel holds, for every channel of a slice,
// all blocks of input that the tile's taps read, so that a tap of an output block is an aligned block at a fixed
// distance from its neighbour's:
//
//   [channel][copy along y][copy along x][rows + shifts][pitch][images][16 or 8]
//
// Or, in NCHW, there is one copy along x: a row of a block has the pixels left and right of its outputs that the taps
// read too, and the micro-kernel rotates its lanes. It then has fewer outputs than lanes. Or it has 16 floats for 8
// outputs, and each tap reads the 8 that begin where it does: 64 bytes, so that no operand lies in two lines of the
// cache.
//
// For generated code, channels are innermost: [copy along y][copy along x][rows + shifts][pitch][images][channel][16].
//
// Along an axis, output block b and lane l read input ((b * extent + l) * stride + tap * dilation - pad). Taps whose
// tap * dilation agree modulo extent * stride read the same blocks, shifted: they share a copy.
#pragma once

#include <cstdint>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// The taps of one axis.
struct TapAxis {
  struct Copy {
    std::int64_t first = 0;   // tap * dilation of the taps that read it unshifted
    std::int64_t shifts = 0;  // blocks that it holds beyond the tile's
  };
  struct Tap {
    std::int64_t copy = 0;
    std::int64_t shift = 0;
  };
  std::vector<Copy> copies;
  std::vector<Tap> taps;

  // All taps read one copy, unshifted.
  explicit TapAxis(std::int64_t kernel) : copies(1), taps(static_cast<std::size_t>(kernel)) {}
  TapAxis(std::int64_t kernel, std::int64_t stride, std::int64_t dilation, std::int64_t extent, std::int64_t tile);
  std::int64_t most_shifts() const;
};

// What the taps of one axis read, counted.
struct AxisBlocks {
  std::int64_t copies = 0;
  std::int64_t blocks = 0;  // of all copies
  std::int64_t most_shifts = 0;

  AxisBlocks(const TapAxis& axis, std::int64_t tile);
};

struct TileShape {
  std::int64_t lanes_h = 1;
  std::int64_t lanes_w = 1;
  std::int64_t rows = 1;
  std::int64_t cols = 1;
  std::int64_t images = 1;
  std::int64_t rotated_w = 0;  // outputs in a block's row of lanes if taps along x rotate them; 0: taps read copies
  bool taps_overlap = false;   // a block has 16 floats in the panel, of which taps along x read 8 each
  bool wraps_rows = false;     // the lanes after the end of a strip of `rows` rows hold the beginning of the next strip

  bool rotates() const { return rotated_w > 0; }
  std::int64_t outputs_w() const { return rotates() ? rotated_w : lanes_w; }
  // Of a block: pixels, or images.
  std::int64_t lanes() const { return lanes_h * lanes_w == 1 ? kLanes : lanes_h * lanes_w; }
  bool is_narrow() const { return lanes() < kLanes; }
  // Floats of a row of a block's lanes in a panel.
  std::int64_t panel_w() const { return taps_overlap ? kLanes : lanes_w; }
  std::int64_t blocks() const { return rows * cols * images; }
  // Whether taps read the same blocks, apart from how many there are.
  bool reads_like(const TileShape& other) const {
    return lanes_h == other.lanes_h && lanes_w == other.lanes_w && wraps_rows == other.wraps_rows;
  }
  bool operator==(const TileShape&) const = default;
};

// The size of a panel, without its places.
struct PanelSize {
  std::int64_t pitch;  // blocks from one panel row to the next, images included
  std::int64_t blocks_per_channel;
  std::int64_t channel_floats;

  // `y` and `x` are those of the tile's taps.
  PanelSize(const AxisBlocks& y, const AxisBlocks& x, const TileShape& tile);
};

// The taps of a tile's blocks.
TapAxis taps_along_y(const ConvGeometry& geometry, const TileShape& tile);
TapAxis taps_along_x(const ConvGeometry& geometry, const TileShape& tile);

struct PanelShape {
  TapAxis y;
  TapAxis x;
  std::int64_t pitch;  // blocks from one panel row to the next, images included
  std::int64_t blocks_per_channel;
  std::vector<std::int64_t> copy_blocks;  // [copies along y][copies along x], block at which the copy begins
  std::int64_t block_floats;              // from one block to the next
  std::int64_t channel_floats;            // from one channel to the next

  PanelShape(const ConvGeometry& geometry, const TileShape& tile);
  // Orders a panel of this many channels with channels innermost instead of outermost: a block is followed by the same
  // block of the next channel.
  void make_channels_innermost(std::int64_t channels);
  // Of a panel of this many channels.
  std::int64_t floats(std::int64_t channels) const { return channels * blocks_per_channel * block_width_; }
  // Where output block 0 of the tile reads through this tap, from where the channel begins.
  std::int64_t tap_floats(std::int64_t tap_y, std::int64_t tap_x) const;
  // The same for all taps, in bytes.
  std::vector<std::ptrdiff_t> tap_bytes() const;

 private:
  std::int64_t images_;
  std::int64_t block_width_;  // floats of one block and one channel
  std::int64_t tap_step_;     // floats from where one tap along x reads to where the next does, if they read one block
};

// Rows of blocks of a tile as its kernel sees them: one, where the blocks of all rows follow each other in the panel.
std::int64_t kernel_rows(const TileShape& tile, std::int64_t pitch);

// For each tap along x the lane that each lane of a tile that rotates reads, [kernel_w][16]; empty for other tiles.
std::vector<std::int32_t> lanes_of_rotations(const ConvGeometry& geometry, const TileShape& tile);

struct Tiling {
  TileShape tile;
  std::int64_t slice_channels;  // input channels in a panel
  RowsFunction rows;
  WeightForm form;                 // that `rows` takes; not always the one of the problem
  int rows_per_call = 1;           // of sell
  std::int64_t unit_channels = 1;  // of code, see CodeUnit; a slice has whole units
  bool loads_in_fours = false;     // of code: weights, see CodeWeight
  bool scales_lists = false;       // of sell: lists are those of one block, and the kernel multiplies their offsets
  std::int64_t row_chunks = 1;     // into which rows are divided among threads

  // Whether weights packed for the one suit the other. Code and dense weights suit all, and lists of one block do.
  bool packs_like(const Tiling& other) const {
    if (form == WeightForm::dense) return other.form == form;
    if (form == WeightForm::code) return other.form == form && unit_channels == other.unit_channels;
    const bool tiles_alike = scales_lists ? other.scales_lists && tile.reads_like(other.tile) : tile == other.tile;
    return tiles_alike && slice_channels == other.slice_channels && form == other.form &&
           rows_per_call == other.rows_per_call;
  }
  // The panel that weights are packed for.
  PanelShape packing_panel(const ConvGeometry& geometry) const {
    if (!scales_lists) return {geometry, tile};
    return {geometry, {.lanes_h = tile.lanes_h, .lanes_w = tile.lanes_w, .wraps_rows = tile.wraps_rows}};
  }
};

}  // namespace sift::cpu
