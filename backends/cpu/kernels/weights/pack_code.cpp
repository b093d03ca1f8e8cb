#include "weights/pack_code.h"

#include <numeric>

#include "base/op.h"

namespace sift::cpu {
namespace {

constexpr std::size_t kLine = 64;

std::size_t nnz_of(std::span<const WeightRow> rows) {
  std::size_t nnz = 0;
  for (const WeightRow& row : rows) nnz += row.values.size();
  return nnz;
}

std::size_t most_code_bytes(std::span<const WeightRow> rows, std::size_t slice_columns, std::int64_t slices,
                            std::int64_t group_rows) {
  const std::size_t nnz = nnz_of(rows);
  const std::int64_t groups = ceil_div(static_cast<std::int64_t>(rows.size()), group_rows) * slices;
  const std::size_t columns = std::min(nnz, static_cast<std::size_t>(groups) * slice_columns);
  const std::size_t parts = body_parts(nnz, columns) + 2 * static_cast<std::size_t>(groups);
  const std::size_t bytes = most_body_bytes(nnz, columns) + parts * most_body_bytes(0, 0);
  // A line is prefetched by one instruction or, in parts of few lines, by several.
  const std::size_t lines = (bytes + nnz * sizeof(float)) / kLine + 2 * parts;
  return bytes + 2 * lines * kPrefetchBytes;
}

std::uint32_t lines_per_block(std::size_t bytes, std::size_t blocks) {
  return static_cast<std::uint32_t>((bytes + kLine * blocks - 1) / (kLine * blocks));
}

}  // namespace

CodePacker::CodePacker(std::span<const WeightRow> rows, std::span<const std::uint32_t> offsets, std::int64_t slices,
                       std::int64_t group_rows, std::int64_t tile_blocks)
    : offsets_(offsets),
      group_rows_(static_cast<std::size_t>(group_rows)),
      tile_blocks_(static_cast<std::size_t>(tile_blocks)),
      memory_(std::make_shared<CodeMemory>(most_code_bytes(rows, offsets.size(), slices, group_rows))),
      at_(memory_->begin()) {}

void CodePacker::seal() {
  prepare_generated();
  memory_->seal(static_cast<std::size_t>(at_ - memory_->begin()));
}

void CodePacker::pack(std::span<const WeightRow> rows, std::uint32_t first, std::size_t columns, PackedSlice& slice) {
  if (columns != ranks_.size()) rank_columns(columns);
  const std::byte* const begin = at_;
  const std::size_t groups = (rows.size() + group_rows_ - 1) / group_rows_;
  slice.memory = memory_;
  slice.values.resize(nnz_of(rows));
  slice.parts = body_parts(slice.values.size() / groups, columns);
  slice.starts.push_back(0);
  float* values = slice.values.data();
  for (std::size_t row = 0; row < rows.size(); row += group_rows_) {
    list_group(rows.subspan(row, std::min(group_rows_, rows.size() - row)), first, values);
    std::size_t done = 0;
    for (std::uint32_t part = 0; part < slice.parts; ++part) {
      const std::size_t end = std::max(done, end_of_column(entries_.size() * (part + 1) / slice.parts));
      // The next part is about as long.
      const std::size_t nnz = end - done;
      const CodePart& written =
          slice.code.emplace_back(CodePart{at_, values + done, lines_per_block(8 * nnz, tile_blocks_),
                                           lines_per_block(sizeof(float) * nnz, tile_blocks_)});
      at_ = write_body(at_, std::span(entries_).subspan(done, nnz), written.code_ahead, written.weights_ahead);
      done = end;
    }
    values += entries_.size();
    slice.starts.push_back(static_cast<std::uint32_t>(values - slice.values.data()));
  }
  // Behind the last part.
  slice.code.push_back({at_, values, 0, 0});
  slice.code_bytes = at_ - begin;
}

void CodePacker::rank_columns(std::size_t columns) {
  std::vector<std::uint32_t> ordered(columns);
  std::iota(ordered.begin(), ordered.end(), 0U);
  std::ranges::sort(ordered, {}, [&](std::uint32_t column) { return offsets_[column]; });
  ranks_.resize(columns);
  for (std::uint32_t rank = 0; rank < columns; ++rank) ranks_[ordered[rank]] = rank;
}

// The group's non-zeros in the order of their columns' ranks.
void CodePacker::list_group(std::span<const WeightRow> group, std::uint32_t first, float* values) {
  places_.assign(ranks_.size(), 0);
  for (const WeightRow& row : group) {
    for (const std::uint32_t column : row.columns) ++places_[ranks_[column - first]];
  }
  std::exclusive_scan(places_.begin(), places_.end(), places_.begin(), std::size_t{0});
  entries_.resize(nnz_of(group));
  for (std::uint32_t row = 0; row < group.size(); ++row) {
    for (std::size_t i = 0; i < group[row].columns.size(); ++i) {
      const std::uint32_t column = group[row].columns[i] - first;
      const std::size_t place = places_[ranks_[column]]++;
      entries_[place] = {offsets_[column], row};
      values[place] = group[row].values[i];
    }
  }
}

// From the `at`-th entry on, so that no column is in two parts.
std::size_t CodePacker::end_of_column(std::size_t at) const {
  while (at > 0 && at < entries_.size() && entries_[at].offset == entries_[at - 1].offset) ++at;
  return at;
}

}  // namespace sift::cpu
