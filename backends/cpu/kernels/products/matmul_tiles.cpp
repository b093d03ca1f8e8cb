// Many rows of x: what their product does that of few does not.
//
// x is copied once into panels, a slice of columns of a few blocks of 16 rows each, as micro-kernels read them. A task
// has some rows of weights. Slice by slice it makes lists of their weights, or dense rows where lists would take
// longer, and multiplies all panels of the slice by them; partial sums stay in the second-level cache. A weight is thus
// listed once for all rows of x.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/aligned_buffer.h"
#include "base/cache.h"
#include "base/thread_pool.h"
#include "conv/tiling.h"
#include "products/listed_rows.h"
#include "products/matmul.h"

namespace sift::cpu {
namespace {

// Rows of x whose sums lie in the second-level cache together; for more, weights are listed again.
constexpr std::int64_t kMostBlocks = 32;
constexpr std::int64_t kTasksPerThread = 4;
constexpr std::int64_t kOffsetLimit = (1 << 16) - 1;
// Of an active weight: its offset and its value.
constexpr std::int64_t kListedBytes = sizeof(std::uint16_t) + sizeof(float);
// Where more of the weights are active, zeros take less time than what lists take for each weight.
constexpr double kListedBelow = 0.55;

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

struct Scratch {
  AlignedBuffer panels;  // others read them
  AlignedBuffer sums;
  AlignedBuffer filled;
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

}  // namespace

struct Matmul::Tiles {
  Tiling tiling;
  std::int64_t first_block;
  std::int64_t blocks;
  std::int64_t count;        // of tiles
  std::int64_t tile_blocks;  // of each but the last
  ColumnSlices slices;
  std::int64_t panel_floats;
  std::int64_t task_rows;  // a multiple of 4

  bool is_dense() const { return tiling.form == WeightForm::dense; }
};

// Whether all of x, [blocks][columns][16], are numbers.
bool Matmul::is_finite(ThreadPool& pool, std::int64_t blocks, const float* x) const {
  const std::int64_t block_floats = weights_->columns() * kLanes;
  std::atomic<bool> finite = true;
  pool.parallel_for(blocks, [&](std::int64_t block) {
    alignas(64) float most[kLanes];
    kernels_.lane_magnitudes(x + block * block_floats, block_floats, most);
    if (std::ranges::any_of(most, [](float value) { return std::isnan(value); })) finite = false;
  });
  return finite;
}

Matmul::Tiles Matmul::tiles_for(std::int64_t blocks, bool is_dense) const {
  const PackedRows& weights = *weights_;
  const TilingProblem problem{.geometry = {},
                              .dtype = DType::float32,
                              .layout = Layout::nchw_n16,
                              .form = is_dense ? WeightForm::dense : WeightForm::csr,
                              .units = blocks,
                              .output_h = 1,
                              .output_w = 1,
                              .channels = weights.columns(),
                              .rows = weights.rows(),
                              .density = weights.density(),
                              .microarchitecture = detected_microarchitecture()};
  Tiles tiles{};
  tiles.tiling = choose_tiling(problem, kernels_);
  if (tiles.tiling.form == WeightForm::sell) {
    // To put rows side by side takes longer than such a kernel saves.
    tiles.tiling.rows = kernels_.rows(WeightForm::csr, 1, static_cast<int>(tiles.tiling.tile.blocks()));
    tiles.tiling.form = WeightForm::csr;
  }
  tiles.blocks = blocks;
  tiles.tile_blocks = tiles.tiling.tile.images;
  tiles.count = ceil_div(blocks, tiles.tile_blocks);
  const std::int64_t column_bytes = tiles.tile_blocks * kLanes * std::int64_t{sizeof(float)};
  // Bits are listed by sixteens.
  const std::int64_t most = std::max<std::int64_t>(kOffsetLimit / column_bytes / kLanes * kLanes, kLanes);
  const std::int64_t slice_columns =
      std::clamp((tiles.tiling.slice_channels + kLanes / 2) / kLanes * kLanes, kLanes, most);
  tiles.slices = {.columns = slice_columns,
                  .count = ceil_div(weights.columns(), slice_columns),
                  .column_bytes = static_cast<std::uint32_t>(column_bytes)};
  tiles.panel_floats = slice_columns * tiles.tile_blocks * kLanes;
  return tiles;
}

void Matmul::run_rows(const Tiles& tiles, std::int64_t first_row, const float* panels, const float* second,
                      float* out) const {
  static thread_local ListedRows listed;
  const std::int64_t stored = std::min(tiles.task_rows, weights_->rows() - first_row);
  const std::int64_t rows = ceil_div(stored, 4) * 4;
  const std::int64_t sums_row = tiles.tile_blocks * kLanes;
  float* const sums = thread_scratch().sums.floats(index(tiles.count * rows * sums_row));
  const std::int64_t row_floats = weights_->words() * kWordColumns;
  float* filled = nullptr;
  if (tiles.is_dense()) {
    filled = thread_scratch().filled.floats(index(rows * row_floats));
    fill_in_rows(*weights_, packed_kernels_, first_row, stored, filled);
  } else {
    listed.begin(*weights_, packed_kernels_, first_row, rows, tiles.slices);
  }
  for (std::int64_t slice = 0; slice < tiles.slices.count; ++slice) {
    const std::int64_t first_column = slice * tiles.slices.columns;
    RowsArgs args{};
    args.block_bytes = kLanes * static_cast<std::int64_t>(sizeof(float));
    args.pitch = tiles.tile_blocks * args.block_bytes;
    if (tiles.is_dense()) {
      args.values = filled + 4 * first_column;
      args.columns = static_cast<std::uint32_t>(std::min(tiles.slices.columns, weights_->columns() - first_column));
      args.row_columns = static_cast<std::uint32_t>(row_floats);
    } else {
      listed.describe(slice, args);
    }
    args.one_tap = true;
    args.bias = slice == 0 ? bias_.data() + first_row : nullptr;
    args.row_end = static_cast<std::uint32_t>(rows);
    for (std::int64_t tile = 0; tile < tiles.count; ++tile) {
      args.panel =
          reinterpret_cast<const std::byte*>(panels + (tile * tiles.slices.count + slice) * tiles.panel_floats);
      args.acc = sums + tile * rows * sums_row;
      tiles.tiling.rows(args);
    }
  }
  for (std::int64_t block = 0; block < tiles.blocks; ++block) {
    const Scatter whole{.target = 0, .source = 0, .lanes = kLanes};
    const std::int64_t tile = block / tiles.tile_blocks;
    const std::int64_t at = ((tiles.first_block + block) * weights_->rows() + first_row) * kLanes;
    kernels_.epilogue({.entries = &whole,
                       .count = 1,
                       .acc = sums + tile * rows * sums_row + block % tiles.tile_blocks * kLanes,
                       .acc_stride = sums_row,
                       .residual = second == nullptr ? nullptr : second + at,
                       .out = out + at,
                       .out_stride = kLanes,
                       .order = nullptr,
                       .rows = static_cast<std::uint32_t>(stored),
                       .activation = options_.activation,
                       .non_temporal = false});
  }
}

void Matmul::run_many(ThreadPool& pool, std::int64_t blocks, const float* in, const float* second, float* out) const {
  const std::int64_t columns = weights_->columns();
  const std::int64_t rows = weights_->rows();
  // Zeros that are multiplied would meet what is infinite or NaN.
  const bool is_dense = !weights_->is_windowed() && weights_->density() >= kListedBelow &&
                        (weights_->density() == 1 || is_finite(pool, blocks, in));
  const std::int64_t groups = ceil_div(blocks, kMostBlocks);
  const std::int64_t group_blocks = ceil_div(blocks, groups);
  for (std::int64_t first = 0; first < blocks; first += group_blocks) {
    Tiles tiles = tiles_for(std::min(group_blocks, blocks - first), is_dense);
    tiles.first_block = first;
    const std::int64_t sums_bytes = tiles.count * tiles.tile_blocks * kLanes * std::int64_t{sizeof(float)};
    const std::int64_t most_rows = std::max<std::int64_t>(level2_cache_bytes() / 4 / sums_bytes / 4 * 4, 4);
    // Their lists lie there beside the sums.
    const double row_bytes = tiles.is_dense()
                                 ? static_cast<double>(weights_->words() * kWordColumns * std::int64_t{sizeof(float)})
                                 : weights_->density() * static_cast<double>(columns * kListedBytes);
    const double listed = static_cast<double>(level2_cache_bytes() / 2) / std::max(row_bytes, 1.0);
    const auto listed_rows = std::max<std::int64_t>(static_cast<std::int64_t>(listed) / 4 * 4, 4);
    const std::int64_t share = ceil_div(ceil_div(rows, kTasksPerThread * pool.threads()), 4) * 4;
    const std::int64_t together = std::max(std::int64_t{4}, weights_->rows_together());
    tiles.task_rows = std::min({most_rows, listed_rows, share, kOffsetLimit});
    tiles.task_rows = std::max(tiles.task_rows / together * together, together);
    float* const panels = thread_scratch().panels.floats(index(tiles.count * tiles.slices.count * tiles.panel_floats));
    pool.parallel_for(tiles.count * tiles.slices.count, [&](std::int64_t number) {
      const std::int64_t first_column = number % tiles.slices.count * tiles.slices.columns;
      const std::int64_t first_block = number / tiles.slices.count * tiles.tile_blocks;
      float* const panel = panels + number * tiles.panel_floats;
      const std::ptrdiff_t step = tiles.tile_blocks * kLanes;
      const std::int64_t count = std::min(tiles.slices.columns, columns - first_column);
      for (std::int64_t i = 0; i < tiles.tile_blocks; ++i) {
        const std::int64_t block = first_block + i;
        const float* const from = in + ((first + block) * columns + first_column) * kLanes;
        const BlockCopy copy{.from = block < tiles.blocks ? from : nullptr,
                             .to = panel + i * kLanes,
                             .count = count,
                             .from_step = kLanes,
                             .to_step = step};
        kernels_.copy_blocks({&copy, 1});
      }
    });
    pool.parallel_for(ceil_div(rows, tiles.task_rows),
                      [&](std::int64_t task) { run_rows(tiles, task * tiles.task_rows, panels, second, out); });
  }
}

}  // namespace sift::cpu
