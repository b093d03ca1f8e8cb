#include "conv/tiling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/cache.h"
#include "conv/tile_costs.h"
#include "conv/tile_positions.h"
#include "jit/generated_rows.h"
#include "weights/packed_weights.h"

namespace sift::cpu {
namespace {

constexpr std::int64_t kOffsetLimit = (1 << 16) - 1;  // offsets into a panel, and of its end, are bytes in 16 bits
constexpr std::int64_t kMostBlocks = 14;
// Of code, whose sums of a group of rows are in the second-level cache; and where code comes from memory for each tile.
constexpr std::int64_t kMostGeneratedBlocks = 18;
constexpr std::int64_t kMostSharingBlocks = 28;  // on Zen
constexpr std::int64_t kMostBlocksFromMemory = 56;
// Tiles of up to kSharedBlocks blocks share lists. The slices of these lists fill the panel at kFullBlocks blocks:
// three blocks hardly miss the cache, and one block ends its lists more often.
constexpr std::int64_t kSharedBlocks = 3;
constexpr std::int64_t kFullBlocks = 2;

// Lanes of a block, {rows, columns}.
constexpr std::array<std::pair<std::int64_t, std::int64_t>, 3> kPixelBlocks{{{1, 16}, {2, 8}, {4, 4}}};
constexpr std::array<std::pair<std::int64_t, std::int64_t>, 1> kNarrowBlocks{{{1, 8}}};  // for csr only
constexpr std::array<std::pair<std::int64_t, std::int64_t>, 1> kImageBlocks{{{1, 1}}};

struct RowsChoice {
  RowsFunction function;
  WeightForm form;
  int rows_per_call = 1;
};

RowsChoice rows_for(const TileShape& tile, const PanelSize& panel, WeightForm form, const KernelTable& kernels) {
  const auto blocks = static_cast<int>(tile.blocks());
  const auto rows = static_cast<int>(kernel_rows(tile, panel.pitch));
  if (tile.is_narrow()) {
    if (rows != 1 || tile.rotates()) return {};
    const auto [function, rows_per_call] = kernels.narrow_sell_rows(blocks, tile.taps_overlap);
    if (function != nullptr) return {function, WeightForm::sell, rows_per_call};
    return {kernels.narrow_rows(blocks, tile.taps_overlap), WeightForm::csr};
  }
  if (tile.rotates()) return {kernels.rotated_rows(blocks), WeightForm::csr_by_tap};
  if (form == WeightForm::code) return {&rows_generated, WeightForm::code};
  if (form != WeightForm::csr) return {kernels.rows(form, rows, blocks / rows), form};
  const auto [function, rows_per_call] = kernels.sell_rows(rows, blocks / rows);
  if (function != nullptr) return {function, WeightForm::sell, rows_per_call};
  return {kernels.rows(WeightForm::csr, rows, blocks / rows), WeightForm::csr};
}

// Outputs in a row of `lanes` lanes that taps along x rotate; 0 if they cannot.
std::int64_t rotated_outputs(const TilingProblem& problem, std::int64_t lanes) {
  const ConvGeometry& g = problem.geometry;
  if (problem.form != WeightForm::csr || g.kernel_w == 1 || g.stride_w != 1) return 0;
  const std::int64_t reach = (g.kernel_w - 1) * g.dilation_w;
  const std::int64_t input_w = problem.output_w + reach - g.pad_left - g.pad_right;
  // A row that holds the whole image needs padding on one side only: what is rotated out of it comes back on the other.
  const std::int64_t pad = std::max(g.pad_left, g.pad_right);
  if (std::min(g.pad_left, g.pad_right) >= 0 && lanes >= input_w + pad && lanes >= problem.output_w) {
    return problem.output_w;
  }
  return std::max<std::int64_t>(lanes - reach, 0);
}

// Whether all taps along x of a narrow block find their operands in 16 floats.
bool taps_may_overlap(const TilingProblem& problem, std::int64_t lanes) {
  const ConvGeometry& g = problem.geometry;
  return lanes > 1 && lanes < kLanes && g.kernel_w > 1 && g.stride_w == 1 &&
         lanes + (g.kernel_w - 1) * g.dilation_w <= kLanes;
}

// What a panel may take. The rest of the cache is left for weights and partial sums.
std::vector<std::int64_t> panel_limits(const TilingProblem& problem, const TileShape& tile) {
  // Code loads an operand for several rows, and does not wait for the second-level cache.
  if (problem.form == WeightForm::code) {
    if (!problem.code_is_far()) return {level2_cache_bytes() / 4};
    return {level2_cache_bytes() / 4, level2_cache_bytes() / 2};
  }
  // Dense rows pass through the whole panel, each four of them, and what has left the cache by then is gone; sparse
  // ones find most of what they need. Lists of narrow blocks are long as it is.
  const std::int64_t eighths = problem.form == WeightForm::dense ? 5 : tile.is_narrow() ? 6 : 7;
  return {std::min(level1_cache_bytes() / 8 * eighths, kOffsetLimit)};
}

// Channels of a slice, where slices have whole units and about as many each: `most`, to the nearest unit, or fewer.
std::int64_t even_slice(std::int64_t channels, std::int64_t most, std::int64_t unit) {
  const std::int64_t units = ceil_div(channels, unit);
  const std::int64_t slices = ceil_div(units, std::max<std::int64_t>((most + unit / 2) / unit, 1));
  return std::min(ceil_div(units, slices) * unit, channels);
}

// Large tiles share the borders that several taps read, and pass through more code at once.
std::int64_t most_generated_blocks(const TilingProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  if (problem.code_is_far()) return kMostBlocksFromMemory;
  const bool shares_borders = g.kernel_h * g.kernel_w > 1 && g.stride_h * g.stride_w == 1;
  return shares_borders && is_zen4_or_newer(problem.microarchitecture) ? kMostSharingBlocks : kMostGeneratedBlocks;
}

// The tiling with the least estimated time. If `order` is given, only those whose sums are made in its order: an
// output's sum is one of sums of slices, and forms begin them differently. `is_shared`: only those that share lists
// with tiles of other sizes; none may be left.
Tiling search(const TilingProblem& problem, const KernelTable& kernels, const Tiling* order = nullptr,
              bool is_shared = false) {
  const bool is_code = problem.form == WeightForm::code;
  const std::int64_t most_blocks = is_code ? most_generated_blocks(problem) : kMostBlocks;
  const std::int64_t taps = problem.geometry.kernel_h * problem.geometry.kernel_w;
  const std::int64_t unit = is_code ? std::min(unit_channels(taps, problem.density), problem.channels) : 1;
  const double live = 1.0 - std::pow(1.0 - problem.density, rows_of_group(problem));
  double least = std::numeric_limits<double>::infinity();
  Tiling best{};
  const auto consider = [&](const TileShape& tile, const PanelSize& panel) {
    const std::int64_t channel_bytes = panel.channel_floats * bytes_of(problem.dtype);
    if (!is_code && channel_bytes > kOffsetLimit) return;
    if (order != nullptr && (order->tile.rotates() ? tile != order->tile : tile.rotates())) return;
    const RowsChoice rows = rows_for(tile, panel, problem.form, kernels);
    if (rows.function == nullptr || (order != nullptr && rows.form != order->form)) return;
    // Where all that a channel has are rows of as many blocks as the tile, an operand's place is that in a panel of one
    // block, times the blocks.
    const bool is_row = tile.rows == 1 && panel.pitch == tile.cols * tile.images;
    const bool scales_lists = rows.form == WeightForm::sell && !tile.is_narrow() &&
                              (is_row || (taps == 1 && kernel_rows(tile, panel.pitch) == 1));
    const bool shares_lists = scales_lists && tile.blocks() <= kSharedBlocks;
    if (is_shared && !(shares_lists && tile.wraps_rows)) return;
    const std::int64_t bytes_to_fit = shares_lists ? channel_bytes / tile.blocks() * kFullBlocks : channel_bytes;
    for (const std::int64_t panel_bytes : panel_limits(problem, tile)) {
      const std::int64_t most = std::clamp<std::int64_t>(panel_bytes / bytes_to_fit, 1, problem.channels);
      if (order != nullptr && most < order->slice_channels) continue;
      const std::int64_t slice_channels =
          order != nullptr ? order->slice_channels : even_slice(problem.channels, most, unit);
      const TileCycles cycles = estimate_tile(problem, tile, panel, slice_channels, rows.form, kernels.vec_bytes, live);
      if (least_cycles(problem, tile, cycles) >= least) continue;
      if (const Division division = divide(problem, tile, rows.form, cycles); division.cycles < least) {
        least = division.cycles;
        best = {tile, slice_channels,           rows.function, rows.form,          rows.rows_per_call,
                unit, problem.loads_in_fours(), scales_lists,  division.row_chunks};
      }
    }
  };
  const auto consider_sizes = [&](TileShape tile) {
    const std::int64_t block_rows = ceil_div(problem.output_h, tile.lanes_h);
    const std::int64_t units = tile.wraps_rows ? 1 : problem.units;
    std::vector<AxisBlocks> along_x;  // by columns of blocks
    for (tile.rows = 1; tile.rows <= std::min(block_rows, most_blocks); ++tile.rows) {
      tile.cols = tile.images = 1;
      const std::int64_t block_cols = count_tiles(tile, problem.units, problem.output_h, problem.output_w).x;
      const AxisBlocks y(taps_along_y(problem.geometry, tile), tile.rows);
      for (; tile.cols <= std::min(block_cols, most_blocks / tile.rows); ++tile.cols) {
        if (std::ssize(along_x) < tile.cols) along_x.emplace_back(taps_along_x(problem.geometry, tile), tile.cols);
        const AxisBlocks& x = along_x[static_cast<std::size_t>(tile.cols) - 1];
        const std::int64_t most_images = std::min(units, most_blocks / (tile.rows * tile.cols));
        for (tile.images = 1; tile.images <= most_images; ++tile.images) consider(tile, PanelSize(y, x, tile));
      }
    }
  };
  const auto consider_all = [&](const auto& lane_shapes) {
    for (const auto& [lanes_h, lanes_w] : lane_shapes) {
      const std::int64_t rotated_w = lanes_w > 1 ? rotated_outputs(problem, lanes_w) : 0;
      consider_sizes({.lanes_h = lanes_h, .lanes_w = lanes_w});
      if (taps_may_overlap(problem, lanes_h * lanes_w)) {
        consider_sizes({.lanes_h = lanes_h, .lanes_w = lanes_w, .taps_overlap = true});
      }
      if (lanes_h == 1 && lanes_w > 1) consider_sizes({.lanes_h = lanes_h, .lanes_w = lanes_w, .wraps_rows = true});
      if (rotated_w > 0) consider_sizes({.lanes_h = lanes_h, .lanes_w = lanes_w, .rotated_w = rotated_w});
    }
  };
  if (problem.layout == Layout::nchw) {
    consider_all(kPixelBlocks);
    // Where images leave many lanes without a pixel, and half a register takes about half the time of a whole one, that
    // is worth more than operands that two rows share.
    const bool in_place_of_pairs = problem.form == WeightForm::csr_pairs && problem.may_list &&
                                   problem.microarchitecture == Microarchitecture::zen4 &&
                                   kernels.vec_bytes == kLanes * bytes_of(problem.dtype);
    if (problem.form == WeightForm::csr || in_place_of_pairs) consider_all(kNarrowBlocks);
  } else {
    consider_all(kImageBlocks);
  }
  return best;
}

}  // namespace

bool TilingProblem::code_is_far() const {
  const double bytes = loads_in_fours() ? 17.0 : 13.0;  // of a non-zero: weight, multiply-add, share of an operand
  const std::int64_t weights = rows * geometry.groups * channels * geometry.kernel_h * geometry.kernel_w;
  return bytes * density * static_cast<double>(weights) > static_cast<double>(kSharedCacheBytes);
}

bool TilingProblem::suits_code() const {
  constexpr double kLeastShared = 2.0;
  constexpr double kLeastRow = 8.0;
  constexpr std::int64_t kLeastBlocks = 4;
  constexpr std::int64_t kLeastBlocksFromMemory = 8;
  const double per_row = density * static_cast<double>(channels * geometry.kernel_h * geometry.kernel_w);
  const double shared = density * static_cast<double>(std::min(rows, kCodeRows));
  return shared >= kLeastShared && per_row >= kLeastRow &&
         blocks() >= (code_is_far() ? kLeastBlocksFromMemory : kLeastBlocks);
}

bool TilingProblem::loads_in_fours() const {
  constexpr std::int64_t kLeastBlocks = 13;
  return microarchitecture == Microarchitecture::zen5 && geometry.kernel_h * geometry.kernel_w > 1 &&
         blocks() >= kLeastBlocks;
}

std::int64_t TilingProblem::blocks() const {
  const std::int64_t pixels = output_h * output_w;
  return units * (layout == Layout::nchw ? ceil_div(pixels, kLanes) : pixels);
}

bool TilingProblem::has_few_blocks() const {
  return layout == Layout::nchw && units * ceil_div(output_h * output_w, kLanes) <= kSharedBlocks;
}

bool TilingProblem::reads_in_place() const {
  return form == WeightForm::code && layout == Layout::nchw_n16 && geometry.is_pointwise() && output_h * output_w == 1;
}

bool TilingProblem::takes_weights_first(const TileShape& tile) const {
  const TileCounts counts = count_tiles(tile, units, output_h, output_w);
  return counts.y * counts.x == 1 && form == WeightForm::dense;
}

bool panel_fits(const ConvGeometry& geometry, Layout layout, DType dtype) {
  const auto any_fits = [&](const auto& lane_shapes) {
    return std::ranges::any_of(lane_shapes, [&](const auto& lanes) {
      const PanelShape panel(geometry, {lanes.first, lanes.second, 1, 1, 1});
      return panel.channel_floats * bytes_of(dtype) <= kOffsetLimit;
    });
  };
  return layout == Layout::nchw ? any_fits(kPixelBlocks) : any_fits(kImageBlocks);
}

Tiling choose_tiling(const TilingProblem& problem, const KernelTable& kernels) {
  // Code has whole units in any slice. Other forms keep the order of sums that is best for one thread, so that results
  // have the same bits for any number of threads.
  if (problem.form == WeightForm::code) return search(problem, kernels);
  TilingProblem alone = problem;
  alone.threads = 1;
  // Of few blocks, where a register holds one, shared lists take about as long as a tile's own, and no new size waits
  // for its packing. Kernels of one tap share them in any case.
  const bool may_share = kernels.vec_bytes == kLanes * bytes_of(problem.dtype) && problem.has_few_blocks() &&
                         problem.geometry.kernel_h * problem.geometry.kernel_w > 1;
  Tiling order = may_share ? search(alone, kernels, nullptr, true) : Tiling{};
  const bool is_shared = order.rows != nullptr;
  if (!is_shared) order = search(alone, kernels);
  return problem.threads == 1 ? order : search(problem, kernels, &order, is_shared);
}

}  // namespace sift::cpu
