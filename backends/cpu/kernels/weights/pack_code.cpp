#include "weights/pack_code.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "base/op.h"
#include "jit/code_memory.h"
#include "jit/generated_rows.h"

namespace sift::cpu {
namespace {

std::size_t nnz_of(std::span<const WeightRow> rows) {
  std::size_t nnz = 0;
  for (const WeightRow& row : rows) nnz += row.values.size();
  return nnz;
}

// Of a group.
std::size_t most_code_bytes(std::size_t nnz, std::size_t columns, std::size_t units, CodeWeight weight) {
  return most_body_bytes(nnz, std::min(nnz, columns), weight) + units * most_body_bytes(0, 0);
}

// Lists the non-zeros of a unit in the order of their taps and channels.
class UnitList {
 public:
  UnitList(std::size_t taps, std::size_t channels) : taps_(taps), columns_(taps * channels) {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::size_t tap = i % taps;
      const std::size_t channel = i / taps;
      columns_[i] = {static_cast<std::uint32_t>(tap), static_cast<std::uint32_t>(channel), tap * channels + channel};
    }
  }

  // `values` receives those of the non-zeros.
  const std::vector<CodeEntry>& list(std::span<const WeightRow> rows, std::size_t first_channel, float* values) {
    const auto first_column = static_cast<std::uint32_t>(first_channel * taps_);
    places_.assign(columns_.size(), 0);
    for (const WeightRow& row : rows) {
      for (const std::uint32_t column : row.columns) ++places_[columns_[column - first_column].rank];
    }
    std::exclusive_scan(places_.begin(), places_.end(), places_.begin(), std::size_t{0});
    entries_.resize(nnz_of(rows));
    for (std::uint32_t row = 0; row < rows.size(); ++row) {
      for (std::size_t i = 0; i < rows[row].columns.size(); ++i) {
        const Column& column = columns_[rows[row].columns[i] - first_column];
        const std::size_t place = places_[column.rank]++;
        entries_[place] = {column.tap, static_cast<std::uint32_t>(first_channel) + column.channel, row};
        values[place] = rows[row].values[i];
      }
    }
    return entries_;
  }

 private:
  // Looked up, since divisions would take most of the time of packing.
  struct Column {
    std::uint32_t tap;
    std::uint32_t channel;  // of the unit
    std::size_t rank;       // by tap, then by channel
  };

  std::size_t taps_;
  std::vector<Column> columns_;
  std::vector<std::size_t> places_;
  std::vector<CodeEntry> entries_;
};

}  // namespace

void pack_code(std::span<const WeightRow> rows, std::int64_t channels, std::int64_t taps, std::int64_t unit_channels,
               std::int64_t group_rows, PackedSlice& slice, CodeWeight weight, ThreadPool* pool) {
  const auto units = static_cast<std::size_t>(ceil_div(channels, unit_channels));
  const auto rows_of_group = static_cast<std::size_t>(group_rows);
  const std::size_t groups = (rows.size() + rows_of_group - 1) / rows_of_group;
  const auto rows_in = [&](std::size_t group) {
    const std::size_t begin = group * rows_of_group;
    return rows.subspan(begin, std::min(rows_of_group, rows.size() - begin));
  };
  // Where each group's code may begin at the latest.
  std::vector<std::size_t> places{0};
  slice.starts.push_back(0);
  for (std::size_t group = 0; group < groups; ++group) {
    const std::size_t nnz = nnz_of(rows_in(group));
    places.push_back(places.back() + most_code_bytes(nnz, static_cast<std::size_t>(channels * taps), units, weight));
    slice.starts.push_back(slice.starts.back() + static_cast<std::uint32_t>(nnz));
  }
  const auto memory = std::make_shared<CodeMemory>(places.back());
  slice.memory = memory;
  slice.values.resize(slice.starts.back());
  slice.units = static_cast<std::uint32_t>(units);
  slice.code.resize((groups + 1) * units + 1);
  std::vector<std::size_t> sizes(groups);
  const auto write_group = [&](std::int64_t index) {
    const auto group = static_cast<std::size_t>(index);
    UnitList list(static_cast<std::size_t>(taps), static_cast<std::size_t>(unit_channels));
    const auto of_group = rows_in(group);
    std::vector<WeightRow> rest(of_group.begin(), of_group.end());
    std::vector<WeightRow> in_unit(rest.size());
    std::byte* const begin = memory->begin() + places[group];
    std::byte* at = begin;
    float* values = slice.values.data() + slice.starts[group];
    for (std::size_t unit = 0; unit < units; ++unit) {
      const auto first_channel = static_cast<std::int64_t>(unit) * unit_channels;
      const auto end = static_cast<std::uint32_t>(std::min(first_channel + unit_channels, channels) * taps);
      for (std::size_t row = 0; row < rest.size(); ++row) in_unit[row] = rest[row].take_until(end);
      const std::vector<CodeEntry>& entries = list.list(in_unit, static_cast<std::size_t>(first_channel), values);
      CodeUnit& written = slice.code[group * units + unit];
      written.weights = values;
      at = write_body(at, entries, taps > 1, written, weight);
      values += entries.size();
    }
    sizes[group] = static_cast<std::size_t>(at - begin);
  };
  if (pool != nullptr) {
    pool->parallel_for(static_cast<std::int64_t>(groups), write_group);
  } else {
    for (std::size_t group = 0; group < groups; ++group) write_group(static_cast<std::int64_t>(group));
  }
  // Bodies follow each other. They are the same wherever they are.
  std::byte* end = memory->begin();
  for (std::size_t group = 0; group < groups; ++group) {
    const std::byte* const from = memory->begin() + places[group];
    std::memmove(end, from, sizes[group]);
    for (CodeUnit& unit : std::span(slice.code).subspan(group * units, units)) unit.body = end + (unit.body - from);
    end += sizes[group];
  }
  std::fill(
      slice.code.end() - static_cast<std::ptrdiff_t>(units) - 1, slice.code.end(),
      CodeUnit{.body = end, .weights = slice.values.data() + slice.values.size(), .code_ahead = 0, .weights_ahead = 0});
  slice.code_bytes = end - memory->begin();
  prepare_generated();
  memory->seal(static_cast<std::size_t>(slice.code_bytes));
}

}  // namespace sift::cpu
