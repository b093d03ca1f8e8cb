#include "conv/tile_costs.h"

#include <algorithm>

#include "base/cache.h"
#include "conv/tile_positions.h"
#include "jit/generated_rows.h"
#include "weights/packed_weights.h"

namespace sift::cpu {
namespace {

// Cycles. Only their ratios matter.
struct Costs {
  double operand;     // a block of the panel times a weight
  double rotation;    // of its lanes
  double weight;      // what a non-zero takes besides its operands
  double sum;         // loading and storing a block of sums
  double list;        // the end of a list, which is mispredicted
  double equal_list;  // the same in sell, per row
  double dense;       // what four dense weights take besides their operands
};

// Fitted to measurements on Zen 5, on Zen 4, and on a Xeon of family 6, model 207.
constexpr Costs costs_of(Microarchitecture processor) {
  // On Intel's, one of the two ports that multiply is the one that shuffles.
  constexpr Costs kIntel{
      .operand = 0.65, .rotation = 0.3, .weight = 1.3, .sum = 3.3, .list = 20.0, .equal_list = 14.0, .dense = 0.6};
  constexpr Costs kAmd{
      .operand = 0.675, .rotation = 0.03, .weight = 0.62, .sum = 2.0, .list = 4.0, .equal_list = 4.0, .dense = 0.6};
  // A shuffle takes one of the two halves' multipliers.
  constexpr Costs kZen4{
      .operand = 1.0, .rotation = 0.13, .weight = 0.85, .sum = 3.5, .list = 10.0, .equal_list = 8.0, .dense = 0.15};
  switch (processor) {
    case Microarchitecture::intel: return kIntel;
    case Microarchitecture::zen4: return kZen4;
    case Microarchitecture::zen5:
    case Microarchitecture::amd: break;
  }
  return kAmd;
}

// What a block of 8 lanes takes of the time of 16.
double narrow_share(const TilingProblem& problem, int vec_bytes) {
  if (vec_bytes < kLanes * bytes_of(problem.dtype)) return 0.5;
  // Where whole registers are loaded and multiplied as two halves, twice the instructions are what is left; elsewhere
  // half a register takes as long as a whole one.
  return problem.microarchitecture == Microarchitecture::zen4 ? 0.58 : 1.0;
}

// Of copying what a tile reads of this many channels.
double packing_cycles(const TilingProblem& problem, const TileShape& tile, const PanelSize& panel, double channels) {
  if (problem.reads_in_place()) return 0.0;
  // A block that wraps rows is copied in parts.
  const double parts = tile.wraps_rows
                           ? 1.0 + static_cast<double>(tile.lanes_w - 1) / static_cast<double>(problem.output_w)
                           : static_cast<double>(tile.lanes_h);
  return static_cast<double>(panel.blocks_per_channel) * parts * channels *
         (problem.layout == Layout::nchw ? 2.5 : 2.0);
}

// Of one group of rows in a slice of this many channels, where a multiply-add that loads its weight takes one cycle.
// `live` is the share of columns of which one of its rows has a non-zero.
double group_cycles(const TilingProblem& problem, const PanelSize& panel, double blocks, double channels, double rows,
                    double live) {
  const bool is_large = channels * static_cast<double>(panel.channel_floats * bytes_of(problem.dtype)) >
                        static_cast<double>(level2_cache_bytes() / 4);
  const bool in_fours = problem.loads_in_fours();
  const double multiply = in_fours ? 0.75 : 1.0;
  const double operand = multiply * (is_large ? 1.0 : 0.8);  // from the second-level cache
  constexpr double kRow = 3.0;                               // its sums, from one slice to the next
  constexpr double kCall = 30.0;
  // Once for all blocks, from the second-level cache or from memory. In fours there is more of it.
  const double instruction = (problem.code_is_far() ? 3.0 : 0.9) * (in_fours ? 2.0 : 1.0);
  const double columns = channels * static_cast<double>(problem.geometry.kernel_h * problem.geometry.kernel_w);
  const double nnz = problem.density * columns * rows;
  const double operands = columns * live;
  return blocks * (multiply * nnz + operand * operands + kRow * rows + kCall) + instruction * (nnz + operands);
}

constexpr double kTask = 300.0;  // cycles of a task besides its work

std::int64_t tiles_of(const TilingProblem& problem, const TileShape& tile) {
  return count_tiles(tile, problem.units, problem.output_h, problem.output_w).all() * problem.geometry.groups;
}

}  // namespace

double rows_of_group(const TilingProblem& problem) {
  return static_cast<double>(problem.rows) / static_cast<double>(ceil_div(problem.rows, kCodeRows));
}

TileCycles estimate_tile(const TilingProblem& problem, const TileShape& tile, const PanelSize& panel,
                         std::int64_t slice_channels, WeightForm form, int vec_bytes, double live) {
  const Costs costs = costs_of(problem.microarchitecture);
  const double share = tile.is_narrow() ? narrow_share(problem, vec_bytes) : 1.0;
  const double blocks = share * static_cast<double>(tile.blocks());
  const double slices = static_cast<double>(ceil_div(problem.channels, slice_channels));
  const double channels = static_cast<double>(problem.channels) / slices;
  const double taps = static_cast<double>(problem.geometry.kernel_h * problem.geometry.kernel_w);
  const double nnz = problem.density * taps * channels;
  // Dense rows share operands four at a time while the registers hold the sums of 4 x 7 blocks, else two.
  const double per_nnz = problem.form != WeightForm::dense ? costs.operand * blocks + costs.weight
                         : blocks <= 7                     ? 0.50 * blocks + costs.dense
                                                           : 0.82 * blocks;
  // A multiply-add waits for the last one to the same sum. Other lists of few blocks have several sums for each output.
  constexpr double kLatency = 4.0;
  const double per_rotated = std::max(per_nnz + costs.rotation * blocks, kLatency);
  const double lists = form == WeightForm::sell         ? costs.equal_list
                       : form == WeightForm::csr_by_tap ? costs.list * static_cast<double>(problem.geometry.kernel_w)
                                                        : costs.list;
  const double per_row = nnz * (tile.rotates() ? per_rotated : per_nnz) + costs.sum * blocks + lists;
  const auto rows = static_cast<double>(problem.rows);
  const double of_group = rows_of_group(problem);
  const double multiplying = form == WeightForm::code
                                 ? rows / of_group * group_cycles(problem, panel, blocks, channels, of_group, live)
                                 : rows * per_row;
  // Of a line that another core has written, beside the work on it.
  constexpr double kMoved = 3.0;
  // Of a weight that is in no cache of the core: of instructions, fewer are fetched ahead.
  const double fetched = form == WeightForm::code ? 5.0 : 1.0;
  return {.multiplying = slices * multiplying,
          .packing = slices * packing_cycles(problem, tile, panel, channels),
          .moving = kMoved * static_cast<double>(panel.blocks_per_channel * problem.channels),
          .fetching = fetched * slices * rows * nnz};
}

double least_cycles(const TilingProblem& problem, const TileShape& tile, const TileCycles& cycles) {
  return static_cast<double>(tiles_of(problem, tile)) / static_cast<double>(problem.threads) *
         (cycles.multiplying + cycles.packing + kTask);
}

// Each chunk of a tile is a task and fills the panel again, so there are as few as keep its sums in a cache, unless
// more leave threads idle for less time.
Division divide(const TilingProblem& problem, const TileShape& tile, WeightForm form, const TileCycles& cycles) {
  constexpr std::int64_t kLeastRows = 16;
  // The weights stream through what the sums leave of the second-level cache. Dense ones of a matrix product are many,
  // and come from memory: those of few rows stay in a cache until the next tile needs them.
  const std::int64_t for_sums =
      problem.takes_weights_first(tile) ? level2_cache_bytes() / 8 : level2_cache_bytes() / 4 * 3;
  const std::int64_t band = band_rows(problem.rows, form, problem.threads);
  const std::int64_t bands = ceil_div(padded_rows(problem.rows), band);
  const std::int64_t band_bytes = band * tile.blocks() * tile.lanes() * std::int64_t{sizeof(float)};
  const std::int64_t least = ceil_div(bands, std::max<std::int64_t>(for_sums / band_bytes, 1));
  const std::int64_t most = std::max(least, std::min(bands, bands * band / kLeastRows));
  const std::int64_t tiles = tiles_of(problem, tile);
  const std::int64_t threads = problem.threads;
  const auto cycles_of = [&](std::int64_t chunks) {
    // The share of the input that other cores have written: where a core has all rows of its pixels, it has written
    // most of what it reads.
    const double others = 1.0 - 1.0 / static_cast<double>(std::min(chunks, threads));
    const double share = static_cast<double>(ceil_div(bands, chunks)) / static_cast<double>(bands);
    const std::int64_t rounds = ceil_div(tiles * chunks, threads);
    const double task = cycles.multiplying * share + cycles.packing + cycles.moving * others + kTask;
    // The tiles of a chunk come one after the other.
    return static_cast<double>(rounds) * task + static_cast<double>(ceil_div(rounds, tiles)) * cycles.fetching * share;
  };
  Division best{least, cycles_of(least)};
  if (threads == 1) return best;
  constexpr std::int64_t kMoreRounds = 3;
  const std::int64_t rounds = ceil_div(tiles * least, threads);
  for (std::int64_t more = 0; more <= kMoreRounds; ++more) {
    const std::int64_t chunks = std::clamp((rounds + more) * threads / tiles, least, most);
    if (const double found = cycles_of(chunks); found < best.cycles) best = {chunks, found};
  }
  return best;
}

}  // namespace sift::cpu
