#include <algorithm>
#include <numeric>
#include <utility>

#include "jit/generated_rows.h"
#include "weights/packed_weights.h"

namespace sift::cpu {
namespace {

// Calls take(list, offset, value) for the weights of one row of a slice, in no particular order. `list` counts the
// `lists` lists of a row in csr_by_tap.
template <typename Take>
void for_each_packed(const PackedSlice& slice, std::size_t row, const Tiling& tiling, std::size_t lists, Take take) {
  switch (tiling.form) {
    case WeightForm::csr_by_tap: {
      const std::uint32_t* const starts = slice.starts.data() + row * lists;
      for (std::size_t list = 0; list < lists; ++list) {
        for (std::size_t i = starts[list]; i < starts[list + 1]; ++i) {
          take(list, slice.offsets[i], slice.packed_value(i));
        }
      }
      return;
    }
    case WeightForm::csr:    // add_list
    case WeightForm::sell:   // add_list
    case WeightForm::dense:  // unpack_dense
    case WeightForm::code:   // unpack_code
      return;
    case WeightForm::csr_pairs: {
      const std::uint32_t* const starts = slice.starts.data() + row / 2 * 3;
      std::size_t value = slice.value_starts[row / 2];
      for (std::size_t i = starts[0]; i < starts[1]; ++i, value += 2) {
        take(0, slice.offsets[i], slice.packed_value(value + row % 2));
      }
      // Both rows' own lists follow each other, values like offsets.
      const std::size_t own = 1 + row % 2;
      value += starts[own] - starts[1];
      for (std::size_t i = starts[own]; i < starts[own + 1]; ++i, ++value) {
        take(0, slice.offsets[i], slice.packed_value(value));
      }
      return;
    }
  }
}

// Where each row stands in a slice.
std::vector<std::size_t> places_of_rows(const PackedSlice& slice, std::int64_t rows, std::int64_t band_rows) {
  std::vector<std::size_t> places(static_cast<std::size_t>(padded_rows(rows)));
  std::iota(places.begin(), places.end(), std::size_t{0});
  const auto band = static_cast<std::size_t>(band_rows);
  for (std::size_t place = 0; place < slice.order.size(); ++place) {
    places[place / band * band + slice.order[place]] = place;
  }
  return places;
}

// Of a list of one row, in which columns ascend: each `step`-th entry of [begin, end). `column_at` is by floats of the
// panel's `panel_bytes`; what lies behind them is padding.
void add_list(const PackedSlice& slice, std::size_t begin, std::size_t end, std::size_t step, std::uint32_t first,
              std::span<const std::uint32_t> column_at, std::size_t panel_bytes, SparseWeights::Builder& builder) {
  builder.add_up_to((end - begin + step - 1) / step, [&](std::uint32_t* columns, float* values) {
    std::size_t count = 0;
    for (std::size_t i = begin; i < end; i += step) {
      const std::size_t offset = slice.offsets[i];
      columns[count] = first + column_at[offset / sizeof(float)];
      values[count] = slice.packed_value(i);
      count += offset < panel_bytes;
    }
    return count;
  });
}

using Listed = std::vector<std::pair<std::uint32_t, float>>;  // columns and values

void add_row(Listed& row, SparseWeights::Builder& builder) {
  std::ranges::sort(row, {}, &Listed::value_type::first);
  for (const auto& [column, value] : row) builder.add(column, value);
}

// Of one group of a convolution.
void unpack_code(const PackedSlice& slice, std::int64_t rows, std::int64_t taps, std::int64_t group_rows,
                 SparseWeights::Builder& builder) {
  std::vector<Listed> listed(static_cast<std::size_t>(group_rows));
  for (std::int64_t begin = 0; begin < rows; begin += group_rows) {
    for (Listed& row : listed) row.clear();
    for (const CodeUnit& unit : std::span(slice.code.data() + begin / group_rows * slice.units, slice.units)) {
      auto value = static_cast<std::size_t>(unit.weights - slice.values.data());
      for (const CodeEntry& entry : read_body(unit.body)) {
        const std::uint32_t column = entry.channel * static_cast<std::uint32_t>(taps) + entry.tap;
        listed[entry.row].emplace_back(column, slice.packed_value(value++));
      }
    }
    for (std::int64_t row = 0; row < std::min(group_rows, rows - begin); ++row) {
      add_row(listed[static_cast<std::size_t>(row)], builder);
      builder.end_row();
    }
  }
}

SparseWeights unpack_dense(const std::vector<std::vector<PackedSlice>>& groups, std::int64_t rows_per_group,
                           std::int64_t columns, std::int64_t taps) {
  const auto rows = static_cast<std::size_t>(rows_per_group);
  const auto row_columns = static_cast<std::size_t>(columns);
  std::vector<float> all(groups.size() * rows * row_columns);
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const PackedSlice& slice : groups[group]) {
      for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t packed = row / 4 * slice.columns * 4 + row % 4;
        float* const values =
            all.data() + (group * rows + row) * row_columns + static_cast<std::size_t>(slice.first_channel * taps);
        for (std::size_t column = 0; column < slice.columns; ++column) {
          values[column] = slice.packed_value(packed + column * 4);
        }
      }
    }
  }
  return SparseWeights::from_all(static_cast<std::int64_t>(groups.size()) * rows_per_group, columns, all);
}

}  // namespace

SparseWeights unpack_weights(const std::vector<std::vector<PackedSlice>>& groups, std::int64_t rows_per_group,
                             std::int64_t columns, const ConvGeometry& geometry, const PanelShape& panel,
                             const Tiling& tiling, std::int64_t band_rows) {
  const std::int64_t taps = geometry.kernel_h * geometry.kernel_w;
  if (tiling.form == WeightForm::dense) return unpack_dense(groups, rows_per_group, columns, taps);
  std::size_t nnz = 0;
  std::int64_t most_channels = 0;
  for (const std::vector<PackedSlice>& slices : groups) {
    for (const PackedSlice& slice : slices) {
      nnz += slice.values.size();
      most_channels = std::max(most_channels, slice.channels);
    }
  }
  SparseWeights::Builder builder(static_cast<std::int64_t>(groups.size()) * rows_per_group, columns,
                                 static_cast<std::int64_t>(nnz));
  if (tiling.form == WeightForm::code) {
    for (const std::vector<PackedSlice>& slices : groups) {
      unpack_code(slices.front(), rows_per_group, taps, band_rows, builder);
    }
    return builder.take();
  }
  // A block of a panel belongs to one channel and tap, or, in tiles that rotate, to the taps of a row, one per list.
  const std::size_t lists = tiling.form == WeightForm::csr_by_tap ? static_cast<std::size_t>(geometry.kernel_w) : 1;
  const std::vector<std::uint16_t> offsets = column_offsets(geometry, panel, most_channels);
  const auto panel_bytes = static_cast<std::size_t>(panel.floats(most_channels)) * sizeof(float);
  // Padding has the place behind the panel.
  std::vector<std::uint32_t> column_at(panel_bytes / sizeof(float) + 1);
  for (std::size_t column = 0; column < offsets.size(); column += lists) {
    column_at[offsets[column] / sizeof(float)] = static_cast<std::uint32_t>(column);
  }
  Listed row_of_slice;
  std::vector<std::vector<std::size_t>> places;
  for (const std::vector<PackedSlice>& slices : groups) {
    places.clear();
    for (const PackedSlice& slice : slices) places.push_back(places_of_rows(slice, rows_per_group, band_rows));
    for (std::int64_t row = 0; row < rows_per_group; ++row) {
      for (std::size_t i = 0; i < slices.size(); ++i) {
        const PackedSlice& slice = slices[i];
        const auto first = static_cast<std::uint32_t>(slice.first_channel * taps);
        const std::size_t place = places[i][static_cast<std::size_t>(row)];
        if (tiling.form == WeightForm::csr || tiling.form == WeightForm::sell) {
          const std::size_t step = tiling.form == WeightForm::csr ? 1 : static_cast<std::size_t>(tiling.rows_per_call);
          const std::uint32_t* const starts = slice.starts.data() + place / step;
          add_list(slice, starts[0] + place % step, starts[1], step, first, column_at, panel_bytes, builder);
          continue;
        }
        row_of_slice.clear();
        for_each_packed(slice, place, tiling, lists, [&](std::size_t list, std::uint16_t offset, float value) {
          const std::uint32_t column = column_at[offset / sizeof(float)];
          row_of_slice.emplace_back(first + column + static_cast<std::uint32_t>(list), value);
        });
        add_row(row_of_slice, builder);
      }
      builder.end_row();
    }
  }
  return builder.take();
}

}  // namespace sift::cpu
