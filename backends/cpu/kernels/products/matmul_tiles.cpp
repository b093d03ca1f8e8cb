// Many rows of x: what their product does that of few does not.
//
// x is copied once into panels, a slice of columns of a few blocks of 16 rows each, as micro-kernels read them. A task
// has some rows of weights. Slice by slice it makes lists of their weights, or dense tiles where all are active, and
// multiplies all panels of the slice by them; partial sums stay in the second-level cache. A weight is thus listed once
// for all rows of x.
#include <algorithm>
#include <cstring>

#include "base/aligned_buffer.h"
#include "base/cache.h"
#include "base/thread_pool.h"
#include "conv/tiling.h"
#include "products/matmul.h"

namespace sift::cpu {
namespace {

// Rows of x whose sums lie in the second-level cache together; for more, weights are listed again.
constexpr std::int64_t kMostBlocks = 32;
constexpr std::int64_t kTasksPerThread = 4;
constexpr std::int64_t kOffsetLimit = (1 << 16) - 1;
// Of an active weight: its offset and its value.
constexpr std::int64_t kListedBytes = sizeof(std::uint16_t) + sizeof(float);

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

struct Scratch {
  AlignedBuffer panels;  // others read them
  AlignedBuffer sums;
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
  std::int64_t count;          // of tiles
  std::int64_t tile_blocks;    // of each but the last
  std::int64_t slice_columns;  // of each but the last
  std::int64_t slices;
  std::int64_t panel_floats;
  std::int64_t task_rows;  // a multiple of 4

  std::uint32_t column_bytes() const {
    return static_cast<std::uint32_t>(tile_blocks * kLanes * std::int64_t{sizeof(float)});
  }
};

// Some rows of the weights in the form of a tiling.
struct Matmul::ListedRows {
  std::int64_t rows;               // in whole fours
  std::vector<std::size_t> taken;  // [rows], weights of slices before
  std::vector<std::uint32_t> starts;
  std::vector<std::uint16_t> offsets;
  std::vector<float> values;
};

Matmul::Tiles Matmul::tiles_for(std::int64_t blocks) const {
  const PackedRows& weights = *weights_;
  const bool is_dense = weights.density() == 1;
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
  // Bits are listed by sixteens.
  const std::int64_t most = std::max<std::int64_t>(kOffsetLimit / tiles.column_bytes() / kLanes * kLanes, kLanes);
  tiles.slice_columns = std::clamp((tiles.tiling.slice_channels + kLanes / 2) / kLanes * kLanes, kLanes, most);
  tiles.slices = ceil_div(weights.columns(), tiles.slice_columns);
  tiles.panel_floats = tiles.slice_columns * tiles.tile_blocks * kLanes;
  return tiles;
}

// csr of the slice, whatever the form of the weights.
void Matmul::list_rows(const Tiles& tiles, std::int64_t first_row, std::int64_t slice, ListedRows& listed) const {
  const PackedRows& weights = *weights_;
  const std::int64_t first = slice * tiles.slice_columns;
  const std::int64_t end = std::min(first + tiles.slice_columns, weights.columns());
  const std::int64_t rows = std::min(listed.rows, weights.rows() - first_row);
  // Dense tiles want columns.
  const std::uint32_t unit = tiles.tiling.form == WeightForm::dense ? 1 : tiles.column_bytes();
  listed.starts.resize(index(listed.rows) + 1);
  const std::int64_t most = std::min(rows * (end - first), weights.nnz_of(first_row, first_row + rows));
  listed.offsets.resize(index(most) + kListSlack);
  listed.values.resize(listed.offsets.size());
  if (!weights.is_list()) {
    ListArgs args{};
    weights.describe(first_row, args);
    args.rows = rows;
    args.first_column = first;
    args.end_column = end;
    args.column_bytes = unit;
    args.taken = listed.taken.data();
    args.list_starts = listed.starts.data();
    args.offsets = listed.offsets.data();
    args.out = listed.values.data();
    packed_kernels_.list(args);
  } else {
    std::size_t at = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      listed.starts[index(row)] = static_cast<std::uint32_t>(at);
      std::size_t& taken = listed.taken[index(row)];
      std::size_t skipped = taken;
      for (const PackedRows::Slice& part : weights.slices()) {
        const std::size_t begin = part.starts[index(first_row + row)];
        const std::size_t part_end = part.starts[index(first_row + row) + 1];
        const std::size_t passed = std::min(skipped, part_end - begin);
        skipped -= passed;
        for (std::size_t i = begin + passed; i < part_end && part.first + part.columns[i] < end; ++i, ++at, ++taken) {
          const auto column = static_cast<std::uint32_t>(part.first + part.columns[i] - first);
          listed.offsets[at] = static_cast<std::uint16_t>(column * unit);
          listed.values[at] = part.values[i];
        }
      }
    }
    listed.starts[index(rows)] = static_cast<std::uint32_t>(at);
  }
  std::fill(listed.starts.begin() + rows, listed.starts.end(), listed.starts[index(rows)]);
  if (tiles.tiling.form == WeightForm::dense) make_dense(end - first, tiles.column_bytes(), listed);
}

// Groups of four rows, column by column.
void Matmul::make_dense(std::int64_t columns, std::uint32_t column_bytes, ListedRows& listed) {
  std::vector<float> tile(index(listed.rows * columns), 0.0F);
  for (std::size_t row = 0; row < index(listed.rows); ++row) {
    float* const group = tile.data() + row / 4 * 4 * index(columns) + row % 4;
    for (std::size_t i = listed.starts[row]; i < listed.starts[row + 1]; ++i) {
      group[4 * std::size_t{listed.offsets[i]}] = listed.values[i];
    }
  }
  listed.values.swap(tile);
  listed.offsets.resize(index(columns));
  for (std::size_t i = 0; i < listed.offsets.size(); ++i) {
    listed.offsets[i] = static_cast<std::uint16_t>(i * column_bytes);
  }
}

void Matmul::run_rows(const Tiles& tiles, std::int64_t first_row, const float* panels, const float* second,
                      float* out) const {
  static thread_local ListedRows listed;
  const std::int64_t rows = weights_->rows();
  const std::int64_t stored = std::min(tiles.task_rows, rows - first_row);
  listed.rows = ceil_div(stored, 4) * 4;
  listed.taken.assign(index(listed.rows), 0);
  const std::int64_t sums_row = tiles.tile_blocks * kLanes;
  float* const sums = thread_scratch().sums.floats(index(tiles.count * listed.rows * sums_row));
  for (std::int64_t slice = 0; slice < tiles.slices; ++slice) {
    list_rows(tiles, first_row, slice, listed);
    RowsArgs args{};
    args.block_bytes = kLanes * static_cast<std::int64_t>(sizeof(float));
    args.pitch = tiles.tile_blocks * args.block_bytes;
    args.starts = listed.starts.data();
    args.offsets = listed.offsets.data();
    args.values = listed.values.data();
    args.columns = args.row_columns =
        static_cast<std::uint32_t>(std::min(tiles.slice_columns, weights_->columns() - slice * tiles.slice_columns));
    args.one_tap = true;
    args.bias = slice == 0 ? bias_.data() + first_row : nullptr;
    args.row_end = static_cast<std::uint32_t>(listed.rows);
    for (std::int64_t tile = 0; tile < tiles.count; ++tile) {
      args.panel = reinterpret_cast<const std::byte*>(panels + (tile * tiles.slices + slice) * tiles.panel_floats);
      args.acc = sums + tile * listed.rows * sums_row;
      tiles.tiling.rows(args);
    }
  }
  for (std::int64_t block = 0; block < tiles.blocks; ++block) {
    const Scatter whole{.target = 0, .source = 0, .lanes = kLanes};
    const std::int64_t tile = block / tiles.tile_blocks;
    const std::int64_t at = ((tiles.first_block + block) * rows + first_row) * kLanes;
    kernels_.epilogue({.entries = &whole,
                       .count = 1,
                       .acc = sums + tile * listed.rows * sums_row + block % tiles.tile_blocks * kLanes,
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
  const std::int64_t groups = ceil_div(blocks, kMostBlocks);
  const std::int64_t group_blocks = ceil_div(blocks, groups);
  for (std::int64_t first = 0; first < blocks; first += group_blocks) {
    Tiles tiles = tiles_for(std::min(group_blocks, blocks - first));
    tiles.first_block = first;
    const std::int64_t sums_bytes = tiles.count * tiles.tile_blocks * kLanes * std::int64_t{sizeof(float)};
    const std::int64_t most_rows = std::max<std::int64_t>(level2_cache_bytes() / 4 / sums_bytes / 4 * 4, 4);
    // Their lists lie there beside the sums.
    const double row_bytes = weights_->density() * static_cast<double>(tiles.slice_columns * kListedBytes);
    const double listed = static_cast<double>(level2_cache_bytes() / 2) / std::max(row_bytes, 1.0);
    const auto listed_rows = std::max<std::int64_t>(static_cast<std::int64_t>(listed) / 4 * 4, 4);
    const std::int64_t share = ceil_div(ceil_div(rows, kTasksPerThread * pool.threads()), 4) * 4;
    const std::int64_t together = std::max(std::int64_t{4}, weights_->rows_together());
    tiles.task_rows = std::min({most_rows, listed_rows, share, kOffsetLimit});
    tiles.task_rows = std::max(tiles.task_rows / together * together, together);
    float* const panels = thread_scratch().panels.floats(index(tiles.count * tiles.slices * tiles.panel_floats));
    pool.parallel_for(tiles.count * tiles.slices, [&](std::int64_t number) {
      const std::int64_t first_column = number % tiles.slices * tiles.slice_columns;
      const std::int64_t first_block = number / tiles.slices * tiles.tile_blocks;
      float* const panel = panels + number * tiles.panel_floats;
      const std::ptrdiff_t step = tiles.tile_blocks * kLanes;
      const std::int64_t count = std::min(tiles.slice_columns, columns - first_column);
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
