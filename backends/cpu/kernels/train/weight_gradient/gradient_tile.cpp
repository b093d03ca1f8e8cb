#include "train/weight_gradient/gradient_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/cache.h"
#include "simd/kernel_table.h"

namespace sift::cpu {
namespace {

constexpr std::int64_t kNoShift = -1;        // of a copy, between taps that share it
constexpr std::int64_t kMostPositions = 64;  // of a tile: rows of gradients lie up to a page apart
constexpr std::int64_t kBlockBytes = kLanes * static_cast<std::int64_t>(sizeof(float));

// Cycles, of which only the ratios matter, and what follows from the form of weights: lists, or generated code.
struct Form {
  double product;   // and the loading of its operand
  double gradient;  // loading a gradient of a row in a slice, from the second-level cache
  double line;      // of a block of sums, from one line of pixels to the next
  double sum;       // the sum over lanes, adding it to memory, fetching code
  double block;     // of sums
  double most_slots;
  double panel;  // the part of the first-level cache that it takes
};
constexpr Form kLists{.product = 1.0,
                      .gradient = 1.0,
                      .line = 8.0,
                      .sum = 3.0,
                      .block = 20.0,
                      .most_slots = 0.75 * kMostGradientSlots,
                      .panel = 0.625};
// Gradients cost more next to fewer loads of operands, and a row that is cut is not as bad: its pieces may share a
// block.
constexpr Form kCode{.product = 0.94,
                     .gradient = 2.0,
                     .line = 3.0,
                     .sum = 6.0,
                     .block = 20.0,
                     .most_slots = 2.0 * kMostGradientSlots,
                     .panel = 0.8125};

// Cycles per product.
double cost_of(const Form& form, const GradientTile& tile, std::int64_t planes, double density, std::int64_t out_h,
               std::int64_t out_w) {
  constexpr double kSums = 22.0;          // of a block
  constexpr double kCopied = 2.5;         // a block of the panel
  constexpr double kCopiedLine = 25.0;    // where a line of them begins
  constexpr double kGradient = 4.0;       // a block of gradients, from memory
  constexpr double kGradientLine = 60.0;  // where a line of them begins, often in another page
  const auto positions = static_cast<double>(tile.positions());
  const auto rows = static_cast<double>(tile.chunk_rows);
  // Weights of a row in a slice, of the rows that have any.
  const double mean = density * static_cast<double>(tile.slice_columns);
  const double slots = std::min(mean / (1.0 - std::exp(-mean)), form.most_slots);
  const double lines = tile.plane_w == tile.w ? 1.0 : static_cast<double>(tile.groups * tile.h);
  const double products = rows * mean * positions;
  const double multiplying = form.product + form.gradient / slots +
                             (form.line * lines + form.block) / (kSums * positions) + form.sum / positions;
  // Channels of tokens are adjacent in memory: a line has all of them.
  const bool is_token = out_h * out_w == 1;
  const double copied_line = is_token ? 0.0 : kCopiedLine / static_cast<double>(tile.plane_w);
  const double gradient_line = is_token ? 0.0 : kGradientLine / static_cast<double>(tile.w);
  const double copying = (kCopied + copied_line) * static_cast<double>(planes * tile.plane_blocks()) / products;
  // Of all slices that share the gradients, a few dozen.
  const double gradients = (kGradient + gradient_line) / (mean * 16.0);
  // Tiles that reach beyond the image are cut, but not all costs with them.
  const double covered = static_cast<double>(ceil_div(out_h, tile.h) * tile.h * ceil_div(out_w, tile.w) * tile.w) /
                         static_cast<double>(out_h * out_w);
  return (multiplying + copying + gradients) * std::sqrt(covered);
}

}  // namespace

GradientTile choose_gradient_tile(const ConvGeometry& geometry, std::int64_t rows, std::int64_t columns, double density,
                                  std::int64_t out_h, std::int64_t out_w, bool generates) {
  const Form& form = generates ? kCode : kLists;
  const auto panel_blocks =
      static_cast<std::int64_t>(form.panel * static_cast<double>(level1_cache_bytes() / kBlockBytes));
  std::optional<GradientTile> best;
  double best_cost = std::numeric_limits<double>::infinity();
  // Taps share the pixels of a copy, or each has its own.
  const auto consider = [&](std::int64_t groups, std::int64_t h, std::int64_t w, bool shares) {
    const TapAxis taps_y(geometry.kernel_h, geometry.stride_h, geometry.dilation_h, 1, shares ? h : kNoShift);
    const TapAxis taps_x(geometry.kernel_w, geometry.stride_w, geometry.dilation_w, 1, shares ? w : kNoShift);
    GradientTile tile{.groups = groups,
                      .h = h,
                      .w = w,
                      .taps_y = taps_y,
                      .taps_x = taps_x,
                      .plane_h = h + taps_y.most_shifts(),
                      .plane_w = w + taps_x.most_shifts(),
                      .slice_columns = 0,
                      .chunk_rows = 0};
    const std::int64_t of_channel = tile.planes_per_channel();
    std::int64_t planes = std::max<std::int64_t>(1, panel_blocks / tile.plane_blocks());
    // Where each tap has a plane, a slice may end within a channel.
    if (shares) planes = std::max(planes / of_channel, std::int64_t{1}) * of_channel;
    tile.slice_columns = std::clamp(shares ? planes / of_channel * tile.taps() : planes, std::int64_t{1}, columns);
    const std::int64_t most_rows =
        std::max<std::int64_t>(8, level2_cache_bytes() / 2 / (tile.positions() * kBlockBytes));
    tile.chunk_rows = ceil_div(rows, ceil_div(rows, most_rows));
    const double cost = cost_of(form, tile, planes, density, out_h, out_w);
    if (cost < best_cost) {
      best_cost = cost;
      best = tile;
    }
  };
  for (std::int64_t w = 1; w <= std::min(out_w, kMostPositions); ++w) {
    for (std::int64_t h = 1; h <= std::min(out_h, kMostPositions / w); ++h) {
      const bool is_whole = h == out_h && w == out_w;
      const std::int64_t most_groups = is_whole ? kMostPositions / (h * w) : 1;
      for (std::int64_t groups = 1; groups <= most_groups; ++groups) {
        for (const bool shares : {true, false}) consider(groups, h, w, shares);
      }
    }
  }
  return *best;
}

}  // namespace sift::cpu
