#include "weights/unpack_lists.h"

#include <algorithm>
#include <cstring>

namespace sift::cpu {

std::vector<std::uint32_t> columns_at(const ConvGeometry& geometry, const PanelShape& panel, std::int64_t channels,
                                      std::size_t step) {
  const std::vector<std::uint16_t> offsets = column_offsets(geometry, panel, channels);
  std::vector<std::uint32_t> found(static_cast<std::size_t>(panel.floats(channels)) + 1);
  for (std::size_t column = 0; column < offsets.size(); column += step) {
    found[offsets[column] / sizeof(float)] = static_cast<std::uint32_t>(column);
  }
  return found;
}

std::int64_t most_channels(const std::vector<std::vector<PackedSlice>>& groups) {
  std::int64_t most = 0;
  for (const std::vector<PackedSlice>& slices : groups) {
    for (const PackedSlice& slice : slices) most = std::max(most, slice.channels);
  }
  return most;
}

UnpackedRows::UnpackedRows(const std::vector<std::vector<PackedSlice>>& groups, std::int64_t rows_per_group,
                           std::int64_t columns, const ConvGeometry& geometry, const PanelShape& panel,
                           const Tiling& tiling, std::int64_t band_rows)
    : groups_(groups),
      rows_per_group_(rows_per_group),
      columns_(columns),
      taps_(geometry.kernel_h * geometry.kernel_w),
      band_rows_(band_rows),
      is_padded_(tiling.form == WeightForm::sell),
      step_(is_padded_ ? static_cast<std::size_t>(tiling.rows_per_call) : 1),
      panel_bytes_(static_cast<std::size_t>(panel.floats(most_channels(groups))) * sizeof(float)),
      column_at_(columns_at(geometry, panel, most_channels(groups))),
      group_(groups.size()) {}

double UnpackedRows::row_nnz() {
  if (row_nnz_) return *row_nnz_;
  const auto behind = static_cast<std::uint16_t>(panel_bytes_);
  std::size_t weights = 0;
  for (const std::vector<PackedSlice>& slices : groups_) {
    for (const PackedSlice& slice : slices) {
      weights += slice.values.size();
      if (is_padded_) weights -= static_cast<std::size_t>(std::ranges::count(slice.offsets, behind)) - kOffsetSlack;
    }
  }
  row_nnz_ = static_cast<double>(weights) / static_cast<double>(std::ssize(groups_) * rows_per_group_);
  return *row_nnz_;
}

std::span<const WeightRow> UnpackedRows::read(std::int64_t first, std::int64_t count) {
  ends_.clear();
  for (std::int64_t row = first; row < first + count; ++row) {
    open(static_cast<std::size_t>(row / rows_per_group_));
    add_row(static_cast<std::size_t>(row % rows_per_group_));
  }
  rows_.clear();
  std::size_t begin = 0;
  for (const std::size_t end : ends_) {
    rows_.push_back(
        {std::span(read_columns_).subspan(begin, end - begin), std::span(read_values_).subspan(begin, end - begin)});
    begin = end;
  }
  return rows_;
}

void UnpackedRows::open(std::size_t group) {
  if (group == group_) return;
  group_ = group;
  lists_.clear();
  const auto band = static_cast<std::size_t>(band_rows_);
  for (const PackedSlice& slice : groups_[group]) {
    const auto* const values = slice.places.empty() ? reinterpret_cast<const std::byte*>(slice.values.data())
                                                    : reinterpret_cast<const std::byte*>(slice.places.data());
    Lists& lists = lists_.emplace_back(Lists{slice.starts.data(),
                                             slice.offsets.data(),
                                             values,
                                             static_cast<std::uint32_t>(slice.first_channel * taps_),
                                             {}});
    lists.places.resize(static_cast<std::size_t>(padded_rows(rows_per_group_)));
    for (std::size_t place = 0; place < lists.places.size(); ++place) {
      const std::size_t row = slice.order.empty() ? place : place / band * band + slice.order[place];
      lists.places[row] = static_cast<std::uint32_t>(place);
    }
  }
}

void UnpackedRows::add_row(std::size_t row) {
  std::size_t count = ends_.empty() ? 0 : ends_.back();
  std::size_t most = count;
  for (const Lists& lists : lists_) most += lists.longest(row, step_);
  if (most > read_columns_.size()) {
    read_columns_.resize(2 * most);
    read_values_.resize(2 * most);
  }
  for (const Lists& lists : lists_) {
    count += copy(lists, lists.begin(row, step_), lists.end(row, step_), read_columns_.data() + count,
                  read_values_.data() + count);
  }
  ends_.push_back(count);
}

std::size_t UnpackedRows::copy(const Lists& lists, std::size_t begin, std::size_t end, std::uint32_t* columns,
                               float* values) const {
  if (begin >= end) return 0;
  const std::uint16_t* const offsets = lists.offsets;
  const std::byte* const list_values = lists.values;
  const std::uint32_t* const column_at = column_at_.data();
  const std::uint32_t first = lists.first_column;
  const std::size_t step = step_;
  const std::size_t panel_bytes = panel_bytes_;
  if (!is_padded_) {
    const std::size_t count = end - begin;
    for (std::size_t i = 0; i < count; ++i) columns[i] = first + column_at[offsets[begin + i] / sizeof(float)];
    std::memcpy(values, list_values + begin * sizeof(float), count * sizeof(float));
    return count;
  }
  std::size_t count = 0;
  // What is at the end of a shorter list is padding.
  for (std::size_t i = begin; i < end && offsets[i] < panel_bytes; i += step, ++count) {
    columns[count] = first + column_at[offsets[i] / sizeof(float)];
    std::memcpy(values + count, list_values + i * sizeof(float), sizeof(float));
  }
  return count;
}

}  // namespace sift::cpu
