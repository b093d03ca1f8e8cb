// DenseProduct::run and what it consists of.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "base/cache.h"
#include "base/thread_pool.h"
#include "products/dense_product.h"
#include "products/strassen.h"

namespace sift::cpu {
namespace {

constexpr std::int64_t kTasksPerThread = 4;  // enough to balance

// All of a matrix.
constexpr QuarterProduct kWhole{.left = {1, 0, 0, 0}, .right = {1, 0, 0, 0}, .result = {1, 0, 0, 0}};

struct Scratch {
  AlignedBuffer tokens;  // sums of quarters of the input, and scales; others read them
  AlignedBuffer scales;
  AlignedBuffer padded;   // a slice of a block
  AlignedBuffer weights;  // sums of quarters of the weights
  AlignedBuffer sums;
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

// One run. Both matrices are cut into `parts` both ways: a pair is one block of each part, and so is a pair of tiles.
struct DenseProduct::Job {
  const float* in;
  const float* residual;
  float* out;
  std::int64_t blocks;      // of 16 tokens
  std::int64_t parts;       // 1 or 2
  std::int64_t pairs;       // of blocks
  std::int64_t first_pair;  // of those whose sums are there
  std::int64_t end_pair;
  std::int64_t pairs_per_task;
  std::int64_t tile_pairs;
  std::int64_t tiles_per_task;
  bool non_temporal;
  std::span<const QuarterProduct> products;
  const float* scales;    // [parts * pairs][16], powers of two; zero where there is no token
  const float* unscales;  // [parts * pairs][16], what makes up for them
  float* tokens;          // [pairs][slices][products][slice columns / parts][16]; null: the input as it is
};

// Tiles of one slice, times blocks.
struct DenseProduct::Task {
  std::int64_t first_tile;
  std::int64_t tiles;
  std::int64_t slice;
  float* combined;  // [products][tiles][slice columns / parts][tile_rows]
};

// Weights that come next: some lines of them are fetched with each tile that is multiplied before.
class DenseProduct::WeightsAhead {
 public:
  WeightsAhead() = default;
  // `floats` of them, and, unless `half` is zero, as many at that distance, within `calls` steps.
  WeightsAhead(const float* first, std::int64_t half, std::int64_t floats, std::int64_t calls)
      : at_(first), half_(half), floats_(floats), lines_(ceil_div((half == 0 ? 1 : 2) * floats / kLanes, calls)) {}

  void step(DenseTileArgs& args) {
    if (done_ == floats_ && half_ != 0) {
      at_ += std::exchange(half_, 0);
      done_ = 0;
    }
    args.ahead = at_ + done_;
    args.ahead_lines = std::min({lines_, args.depth, (floats_ - done_) / kLanes});
    done_ += args.ahead_lines * kLanes;
  }

 private:
  const float* at_ = nullptr;
  std::int64_t half_ = 0;
  std::int64_t floats_ = 0;
  std::int64_t lines_ = 0;
  std::int64_t done_ = 0;
};

// Of a pair's sums.
std::int64_t DenseProduct::token_floats(const Job& job) const {
  return slices_ * static_cast<std::int64_t>(job.products.size()) * slice_columns_ / job.parts * kLanes;
}

// Scales of all tokens; false if one is not finite.
bool DenseProduct::find_scales(ThreadPool& pool, const Shape& shape, const float* in, float* scales,
                               float* unscales) const {
  const std::int64_t blocks = ceil_div(shape.n, kLanes);
  pool.parallel_for(blocks, [&](std::int64_t block) {
    const std::int64_t at = block * kLanes;
    kernels_.lane_magnitudes(in + at * columns_, columns_ * kLanes, unscales + at);
  });
  bool finite = true;
  for (std::int64_t token = 0; token < blocks * kLanes; ++token) {
    if (token >= shape.n) {
      scales[token] = unscales[token] = 0;
      continue;
    }
    finite = finite && !std::isnan(unscales[token]);
    const int exponent = exponent_of(unscales[token]);
    scales[token] = std::ldexp(1.0F, -exponent);
    unscales[token] = std::ldexp(1.0F, exponent);
  }
  return finite;
}

// The sums of quarters of a pair of blocks.
void DenseProduct::combine_tokens(const Job& job, std::int64_t pair) const {
  const std::int64_t depth = slice_columns_ / 2;
  float* const padded = thread_scratch().padded.floats(index(2 * slice_columns_ * kLanes));
  float* to = job.tokens + (pair - job.first_pair) * token_floats(job);
  for (std::int64_t slice = 0; slice < slices_; ++slice) {
    const std::int64_t columns = columns_of(slice);
    const float* blocks[2];
    const float* scales[2];
    for (std::int64_t part = 0; part < 2; ++part) {
      const std::int64_t block = pair + part * job.pairs;
      scales[part] = job.scales + block * kLanes;
      // Where there is none, its scales are zero.
      const float* const from = job.in + (std::min(block, job.blocks - 1) * columns_ + slice * slice_columns_) * kLanes;
      blocks[part] = from;
      if (columns == slice_columns_) continue;
      float* const copy = padded + part * slice_columns_ * kLanes;
      std::memcpy(copy, from, index(columns * kLanes) * sizeof(float));
      std::memset(copy + columns * kLanes, 0, index((slice_columns_ - columns) * kLanes) * sizeof(float));
      blocks[part] = copy;
    }
    for (const QuarterProduct& product : job.products) {
      const Taken taken(product.right);
      const float* quarters[2];
      alignas(64) float signed_scales[2][kLanes];
      for (int i = 0; i < 2; ++i) {
        const int part = taken.quarters[i] & 1;
        quarters[i] = blocks[part] + (taken.quarters[i] >> 1) * depth * kLanes;
        for (std::int64_t lane = 0; lane < kLanes; ++lane) signed_scales[i][lane] = taken.signs[i] * scales[part][lane];
      }
      kernels_.combine({.first = quarters[0],
                        .first_scales = signed_scales[0],
                        .second = quarters[1],
                        .second_scales = signed_scales[1],
                        .out = to,
                        .count = depth * kLanes});
      to += depth * kLanes;
    }
  }
}

// The weights of a product: a quarter of a pair of tiles, where it is one as it is, or a sum.
const float* DenseProduct::factor(const Job& job, const Task& task, std::size_t product, std::int64_t tile) const {
  const std::int64_t floats = slice_columns_ / job.parts * kernels_.dense_rows;
  const Taken taken(job.products[product].left);
  if (!taken.is_one() || taken.signs[0] != 1) {
    return task.combined + (static_cast<std::int64_t>(product) * task.tiles + tile) * floats;
  }
  return quarter(job, task, tile, taken.quarters[0]);
}

const float* DenseProduct::quarter(const Job& job, const Task& task, std::int64_t tile, int number) const {
  return weights_of(task.first_tile + tile + (number >> 1) * job.tile_pairs, task.slice) +
         (number & 1) * (slice_columns_ / job.parts * kernels_.dense_rows);
}

void DenseProduct::combine_weights(const Job& job, const Task& task) const {
  for (std::size_t product = 0; product < job.products.size(); ++product) {
    const Taken taken(job.products[product].left);
    if (taken.is_one() && taken.signs[0] == 1) continue;
    alignas(64) float signs[2][kLanes];
    for (int i = 0; i < 2; ++i) std::fill(signs[i], signs[i] + kLanes, taken.signs[i]);
    const std::int64_t floats = slice_columns_ / job.parts * kernels_.dense_rows;
    for (std::int64_t tile = 0; tile < task.tiles; ++tile) {
      kernels_.combine({.first = quarter(job, task, tile, taken.quarters[0]),
                        .first_scales = signs[0],
                        .second = quarter(job, task, tile, taken.quarters[1]),
                        .second_scales = signs[1],
                        .out = task.combined + (static_cast<std::int64_t>(product) * task.tiles + tile) * floats,
                        .count = floats});
    }
  }
}

// Adds the products of a slice to the sums of a pair of blocks, [quarters][tiles][tile_rows][16].
void DenseProduct::multiply(const Job& job, const Task& task, std::int64_t pair, float* sums,
                            WeightsAhead& ahead) const {
  const std::int64_t tile_sums = kernels_.dense_rows * kLanes;
  DenseTileArgs args{};
  args.depth = job.tokens == nullptr ? columns_of(task.slice) : slice_columns_ / job.parts;
  args.operands = job.tokens == nullptr ? job.in + (pair * columns_ + task.slice * slice_columns_) * kLanes
                                        : job.tokens + (pair - job.first_pair) * token_floats(job) +
                                              task.slice * (token_floats(job) / slices_);
  for (std::size_t product = 0; product < job.products.size(); ++product) {
    const Taken taken(job.products[product].result);
    for (std::int64_t tile = 0; tile < task.tiles; ++tile) {
      args.weights = factor(job, task, product, tile);
      for (int i = 0; i < 2; ++i) {
        float* const to = sums + (taken.quarters[i] * task.tiles + tile) * tile_sums;
        args.targets[i] = {taken.signs[i] == 0 ? nullptr : to, taken.signs[i]};
      }
      ahead.step(args);
      kernels_.dense_tile(args);
    }
    args.operands += args.depth * kLanes;
  }
}

void DenseProduct::finish(const Job& job, const Task& task, std::int64_t pair, const float* sums) const {
  const std::int64_t tile_rows = kernels_.dense_rows;
  for (std::int64_t part = 0; part < job.parts; ++part) {
    const std::int64_t row = (task.first_tile + part * job.tile_pairs) * tile_rows;
    const std::int64_t rows = std::min(task.tiles * tile_rows, rows_ - row);
    for (std::int64_t block = pair; block < job.parts * job.pairs; block += job.pairs) {
      const float* const from = sums;
      sums += task.tiles * tile_rows * kLanes;
      if (block >= job.blocks || rows <= 0) continue;
      const std::int64_t at = (block * rows_ + row) * kLanes;
      kernels_.dense_finish({.sums = from,
                             .row_scales = row_scales_.data() + row,
                             .lane_scales = job.unscales + block * kLanes,
                             .bias = bias_.data() + row,
                             .residual = job.residual == nullptr ? nullptr : job.residual + at,
                             .out = job.out + at,
                             .rows = rows,
                             .activation = activation_,
                             .non_temporal = job.non_temporal});
    }
  }
}

// The tiles and blocks of one task, from the given ones on.
void DenseProduct::run_task(const Job& job, std::int64_t first_tile, std::int64_t first_pair) const {
  const std::int64_t tile_floats = slice_columns_ * kernels_.dense_rows;
  const auto product_count = static_cast<std::int64_t>(job.products.size());
  const std::int64_t pairs = std::min(job.pairs_per_task, job.end_pair - first_pair);
  Task task{};
  task.first_tile = first_tile;
  task.tiles = std::min(job.tiles_per_task, job.tile_pairs - first_tile);
  Scratch& scratch = thread_scratch();
  if (job.parts > 1) {
    task.combined = scratch.weights.floats(index(product_count * task.tiles * tile_floats / job.parts));
  }
  const std::int64_t pair_sums = job.parts * job.parts * task.tiles * kernels_.dense_rows * kLanes;
  // Of all pairs, where they wait for the next slice.
  float* const all_sums = scratch.sums.floats(index((slices_ == 1 ? 1 : pairs) * pair_sums));
  for (; task.slice < slices_; ++task.slice) {
    if (job.parts > 1) combine_weights(job, task);
    const bool is_last = task.slice + 1 == slices_;
    const std::int64_t next_tile = is_last ? first_tile + task.tiles : first_tile;
    const std::int64_t next_tiles = std::min(task.tiles, job.tile_pairs - next_tile);
    WeightsAhead ahead;
    if (next_tiles > 0) {
      ahead = {weights_of(next_tile, is_last ? 0 : task.slice + 1), (job.parts - 1) * job.tile_pairs * tile_floats,
               next_tiles * tile_floats, pairs * product_count * task.tiles};
    }
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      float* const sums = all_sums + (slices_ == 1 ? 0 : pair * pair_sums);
      if (task.slice == 0) std::memset(sums, 0, index(pair_sums) * sizeof(float));
      multiply(job, task, first_pair + pair, sums, ahead);
      if (is_last) finish(job, task, first_pair + pair, sums);
    }
  }
  if (job.non_temporal) kernels_.end_non_temporal_stores();
}

void DenseProduct::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  const std::int64_t out_floats = element_count(output_shape(shape), Layout::nchw_n16);
  if (out_floats == 0) return;
  Scratch& scratch = thread_scratch();
  Job job{};
  job.in = in;
  job.residual = others.second;
  job.out = out;
  job.blocks = ceil_div(shape.n, kLanes);
  job.non_temporal = stores_non_temporally(out_floats, out, others.second);

  float* const scales = scratch.scales.floats(index(2 * (job.blocks + 1) * kLanes));
  float* const unscales = scales + (job.blocks + 1) * kLanes;
  const bool halved = halves(shape) && find_scales(pool, shape, in, scales, unscales);
  job.parts = halved ? 2 : 1;
  job.products = halved ? std::span<const QuarterProduct>(kStrassen) : std::span(&kWhole, 1);
  job.pairs = ceil_div(job.blocks, job.parts);
  job.tile_pairs = tiles_ / job.parts;
  if (halved) {
    std::fill(scales + job.blocks * kLanes, scales + (job.blocks + 1) * kLanes, 0.0F);
  } else {
    std::fill(unscales, unscales + job.blocks * kLanes, 1.0F);
  }
  job.scales = scales;
  job.unscales = unscales;

  // The tiles of a task stay in the second-level cache, and so do its sums.
  const auto fits = [](std::int64_t floats, std::int64_t bytes) {
    return std::max<std::int64_t>(bytes / (floats * static_cast<std::int64_t>(sizeof(float))), 1);
  };
  const auto product_count = static_cast<std::int64_t>(job.products.size());
  const std::int64_t tile_floats = product_count * slice_columns_ / job.parts * kernels_.dense_rows;
  const std::int64_t tasks = kTasksPerThread * pool.threads();
  job.tiles_per_task = std::clamp<std::int64_t>(job.tile_pairs / tasks, 1, fits(tile_floats, level2_cache_bytes() / 2));
  const std::int64_t sums = job.parts * job.parts * job.tiles_per_task * kernels_.dense_rows * kLanes;
  const std::int64_t most_pairs = slices_ == 1 ? job.pairs : fits(sums, level2_cache_bytes() / 4);
  const std::int64_t tile_tasks = ceil_div(job.tile_pairs, job.tiles_per_task);

  // All tiles read the sums of a chunk of tokens out of the last-level cache, and then those of the next ones.
  const std::int64_t chunk = halved ? std::min(fits(token_floats(job), kSharedCacheBytes), job.pairs) : job.pairs;
  if (halved) job.tokens = scratch.tokens.floats(index(chunk * token_floats(job)));
  for (std::int64_t first = 0; first < job.pairs; first += chunk) {
    job.first_pair = first;
    job.end_pair = std::min(first + chunk, job.pairs);
    const std::int64_t pairs = job.end_pair - first;
    if (halved) pool.parallel_for(pairs, [&](std::int64_t pair) { combine_tokens(job, first + pair); });
    job.pairs_per_task = std::min(ceil_div(pairs, std::min(ceil_div(tasks, tile_tasks), pairs)), most_pairs);
    const std::int64_t pair_tasks = ceil_div(pairs, job.pairs_per_task);
    pool.parallel_for(tile_tasks * pair_tasks, [&](std::int64_t task) {
      run_task(job, task / pair_tasks * job.tiles_per_task, first + task % pair_tasks * job.pairs_per_task);
    });
  }
}

}  // namespace sift::cpu
