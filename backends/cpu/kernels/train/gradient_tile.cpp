#include "train/gradient_tile.h"

#include <cmath>
#include <limits>

#include "base/cache.h"
#include "simd/kernel_table.h"

namespace sift::cpu {
namespace {

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
                     .sum = 5.0,
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
  const double copying = (kCopied + kCopiedLine / static_cast<double>(tile.plane_w)) *
                         static_cast<double>(planes * tile.plane_blocks()) / products;
  // Of all slices that share the gradients, a few dozen.
  const double gradients = (kGradient + kGradientLine / static_cast<double>(tile.w)) / (mean * 16.0);
  // Tiles that reach beyond the image are cut, but not all costs with them.
  const double covered = static_cast<double>(ceil_div(out_h, tile.h) * tile.h * ceil_div(out_w, tile.w) * tile.w) /
                         static_cast<double>(out_h * out_w);
  return (multiplying + copying + gradients) * std::sqrt(covered);
}

}  // namespace

GradientTile choose_gradient_tile(const ConvGeometry& geometry, std::int64_t rows, std::int64_t columns, double density,
                                  std::int64_t out_h, std::int64_t out_w, bool generates) {
  const Form& form = generates ? kCode : kLists;
  const GradientTaps down = taps_of_rows(geometry);
  const GradientTaps across = taps_of_columns(geometry);
  const std::int64_t taps = down.count * across.count;
  const std::int64_t phases = down.phases() * across.phases();
  const auto panel_blocks =
      static_cast<std::int64_t>(form.panel * static_cast<double>(level1_cache_bytes() / kBlockBytes));
  GradientTile best{};
  double best_cost = std::numeric_limits<double>::infinity();
  const auto consider = [&](std::int64_t groups, std::int64_t h, std::int64_t w) {
    GradientTile tile{.groups = groups,
                      .h = h,
                      .w = w,
                      .by_tap = false,
                      .plane_h = h + down.reach(),
                      .plane_w = w + across.reach(),
                      .slice_columns = 0,
                      .chunk_rows = 0};
    tile.by_tap = static_cast<double>(tile.plane_h) * static_cast<double>(tile.plane_w * phases) >
                  static_cast<double>(taps) * static_cast<double>(h * w);
    if (tile.by_tap) {
      tile.plane_h = h;
      tile.plane_w = w;
    }
    std::int64_t planes = std::max<std::int64_t>(1, panel_blocks / tile.plane_blocks());
    if (!tile.by_tap) planes = std::max(planes / phases, std::int64_t{1}) * phases;
    tile.slice_columns = std::clamp(tile.by_tap ? planes : planes / phases * taps, std::int64_t{1}, columns);
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
      for (std::int64_t groups = 1; groups <= most_groups; ++groups) consider(groups, h, w);
    }
  }
  return best;
}

}  // namespace sift::cpu
