#include <algorithm>
#include <utility>

#include "jit/generated_rows.h"
#include "weights/pack_lists.h"
#include "weights/packed_weights.h"
#include "weights/unpack_lists.h"

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
    case WeightForm::csr:    // UnpackedRows
    case WeightForm::sell:   // UnpackedRows
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
  for (const std::vector<PackedSlice>& slices : groups) {
    for (const PackedSlice& slice : slices) nnz += slice.values.size();
  }
  const std::int64_t rows = std::ssize(groups) * rows_per_group;
  SparseWeights::Builder builder(rows, columns, static_cast<std::int64_t>(nnz));
  if (tiling.form == WeightForm::code) {
    for (const std::vector<PackedSlice>& slices : groups) {
      unpack_code(slices.front(), rows_per_group, taps, band_rows, builder);
    }
    return builder.take();
  }
  if (has_lists(tiling.form)) {
    UnpackedRows source(groups, rows_per_group, columns, geometry, panel, tiling, band_rows);
    for (std::int64_t row = 0; row < rows; ++row) {
      const WeightRow& read = source.read(row, 1).front();
      builder.add(read.columns, read.values);
      builder.end_row();
    }
    return builder.take();
  }
  // A block of a panel belongs to one channel and tap, or, in tiles that rotate, to the taps of a row, one per list.
  const std::size_t lists = tiling.form == WeightForm::csr_by_tap ? static_cast<std::size_t>(geometry.kernel_w) : 1;
  const std::vector<std::uint32_t> column_at = columns_at(geometry, panel, most_channels(groups), lists);
  Listed row_of_slice;
  for (const std::vector<PackedSlice>& slices : groups) {
    for (std::int64_t row = 0; row < rows_per_group; ++row) {
      for (const PackedSlice& slice : slices) {
        const auto first = static_cast<std::uint32_t>(slice.first_channel * taps);
        row_of_slice.clear();
        for_each_packed(slice, static_cast<std::size_t>(row), tiling, lists,
                        [&](std::size_t list, std::uint16_t offset, float value) {
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
