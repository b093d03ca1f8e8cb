#include "packed_weights.h"

#include <algorithm>
#include <span>
#include <utility>

namespace sift::cpu {
namespace {

struct Row {
  std::span<const std::uint32_t> columns;
  std::span<const float> values;

  // Splits off what lies before `column`.
  Row take_until(std::uint32_t column) {
    const auto count =
        static_cast<std::size_t>(std::lower_bound(columns.begin(), columns.end(), column) - columns.begin());
    const Row taken{columns.first(count), values.first(count)};
    columns = columns.subspan(count);
    values = values.subspan(count);
    return taken;
  }
};

// Columns of the slice -> bytes into the panel.
std::vector<std::uint16_t> column_offsets(const ConvGeometry& geometry, const PanelShape& panel,
                                          std::int64_t channels) {
  std::vector<std::uint16_t> offsets;
  offsets.reserve(static_cast<std::size_t>(channels * geometry.kernel_h * geometry.kernel_w));
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    for (std::int64_t y = 0; y < geometry.kernel_h; ++y) {
      for (std::int64_t x = 0; x < geometry.kernel_w; ++x) {
        const std::int64_t block = channel * panel.blocks_per_channel + panel.tap_block(y, x);
        offsets.push_back(static_cast<std::uint16_t>(block * kLanes * 4));
      }
    }
  }
  return offsets;
}

std::uint32_t size_of(const std::vector<std::uint16_t>& list) { return static_cast<std::uint32_t>(list.size()); }

void pack_single(std::span<const Row> rows, std::uint32_t first, std::span<const std::uint16_t> offsets,
                 PackedSlice& slice) {
  slice.starts.push_back(0);
  for (const Row& row : rows) {
    for (const std::uint32_t column : row.columns) slice.offsets.push_back(offsets[column - first]);
    slice.values.insert(slice.values.end(), row.values.begin(), row.values.end());
    slice.starts.push_back(size_of(slice.offsets));
  }
}

void pack_rotated(std::span<const Row> rows, std::uint32_t first, std::span<const std::uint16_t> offsets,
                  std::uint32_t kernel_w, PackedSlice& slice) {
  slice.starts.push_back(0);
  for (const Row& row : rows) {
    for (std::uint32_t tap = 0; tap < kernel_w; ++tap) {
      for (std::size_t i = 0; i < row.columns.size(); ++i) {
        if (row.columns[i] % kernel_w != tap) continue;
        slice.offsets.push_back(offsets[row.columns[i] - first]);
        slice.values.push_back(row.values[i]);
      }
      slice.starts.push_back(size_of(slice.offsets));
    }
  }
}

void pack_pair(std::span<const Row> rows, std::uint32_t first, std::span<const std::uint16_t> offsets,
               PackedSlice& slice) {
  std::vector<std::uint16_t> only_offsets[2];
  std::vector<float> only_values[2];
  for (std::size_t pair = 0; pair < rows.size(); pair += 2) {
    const Row& a = rows[pair];
    const Row& b = rows[pair + 1];
    for (int side = 0; side < 2; ++side) {
      only_offsets[side].clear();
      only_values[side].clear();
    }
    slice.starts.push_back(size_of(slice.offsets));
    slice.value_starts.push_back(static_cast<std::uint32_t>(slice.values.size()));
    const auto only = [&](std::size_t side, const Row& row, std::size_t i) {
      only_offsets[side].push_back(offsets[row.columns[i] - first]);
      only_values[side].push_back(row.values[i]);
    };
    std::size_t i = 0;
    std::size_t j = 0;
    while (i < a.columns.size() || j < b.columns.size()) {
      if (j == b.columns.size() || (i < a.columns.size() && a.columns[i] < b.columns[j])) {
        only(0, a, i++);
      } else if (i == a.columns.size() || b.columns[j] < a.columns[i]) {
        only(1, b, j++);
      } else {
        slice.offsets.push_back(offsets[a.columns[i] - first]);
        slice.values.push_back(a.values[i++]);
        slice.values.push_back(b.values[j++]);
      }
    }
    for (int side = 0; side < 2; ++side) {
      slice.starts.push_back(size_of(slice.offsets));
      slice.offsets.insert(slice.offsets.end(), only_offsets[side].begin(), only_offsets[side].end());
      slice.values.insert(slice.values.end(), only_values[side].begin(), only_values[side].end());
    }
  }
  slice.starts.push_back(size_of(slice.offsets));
}

void pack_dense(std::span<const Row> rows, std::uint32_t first, std::span<const std::uint16_t> offsets,
                PackedSlice& slice) {
  slice.columns = static_cast<std::uint32_t>(offsets.size());
  slice.offsets.assign(offsets.begin(), offsets.end());
  slice.values.assign(rows.size() * offsets.size(), 0.0F);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    float* const group = slice.values.data() + row / 4 * offsets.size() * 4 + row % 4;
    for (std::size_t i = 0; i < rows[row].columns.size(); ++i) {
      group[std::size_t{rows[row].columns[i] - first} * 4] = rows[row].values[i];
    }
  }
}

// Calls take(list, offset, value) for the non-zeros of one row of a slice, in no particular order. `list` counts the
// lists of a row of algorithm single, `lists` of them.
template <typename Take>
void for_each_packed(const PackedSlice& slice, std::size_t row, Algorithm algorithm, std::size_t lists, Take take) {
  if (algorithm == Algorithm::dense) {
    const float* const group = slice.values.data() + row / 4 * slice.columns * 4 + row % 4;
    for (std::size_t column = 0; column < slice.columns; ++column) {
      const float value = group[column * 4];
      if (value != 0.0F) take(0, slice.offsets[column], value);
    }
    return;
  }
  if (algorithm == Algorithm::single) {
    const std::uint32_t* const starts = slice.starts.data() + row * lists;
    for (std::size_t list = 0; list < lists; ++list) {
      for (std::size_t i = starts[list]; i < starts[list + 1]; ++i) take(list, slice.offsets[i], slice.values[i]);
    }
    return;
  }
  const std::uint32_t* const starts = slice.starts.data() + row / 2 * 3;
  const float* value = slice.values.data() + slice.value_starts[row / 2];
  for (std::size_t i = starts[0]; i < starts[1]; ++i, value += 2) take(0, slice.offsets[i], value[row % 2]);
  // Both rows' own lists follow each other, values like offsets.
  const std::size_t own = 1 + row % 2;
  value += starts[own] - starts[1];
  for (std::size_t i = starts[own]; i < starts[own + 1]; ++i, ++value) take(0, slice.offsets[i], *value);
}

}  // namespace

std::int64_t PackedSlice::bytes() const {
  return static_cast<std::int64_t>(offsets.capacity() * sizeof(offsets[0]) + values.capacity() * sizeof(values[0]) +
                                   (starts.capacity() + value_starts.capacity()) * sizeof(starts[0]));
}

void PackedSlice::describe(RowsArgs& args) const {
  args.starts = starts.data();
  args.value_starts = value_starts.data();
  args.offsets = offsets.data();
  args.values = values.data();
  args.columns = columns;
}

std::int64_t padded_rows(std::int64_t rows) { return (rows + 3) / 4 * 4; }

std::vector<PackedSlice> pack_weights(const SparseWeights& weights, std::int64_t first_row, std::int64_t rows,
                                      const ConvGeometry& geometry, const PanelShape& panel,
                                      std::int64_t slice_channels, Algorithm algorithm, bool rotates) {
  const std::int64_t taps = geometry.kernel_h * geometry.kernel_w;
  const std::int64_t channels = weights.columns() / taps;
  std::vector<Row> rest(static_cast<std::size_t>(padded_rows(rows)));
  for (std::int64_t row = 0; row < rows; ++row) {
    rest[static_cast<std::size_t>(row)] = {weights.row_columns(first_row + row), weights.row_values(first_row + row)};
  }
  const std::vector<std::uint16_t> offsets =
      column_offsets(geometry, panel, std::min(slice_channels, channels));
  std::vector<PackedSlice> slices;
  std::vector<Row> in_slice(rest.size());
  for (std::int64_t channel = 0; channel < channels; channel += slice_channels) {
    PackedSlice& slice = slices.emplace_back();
    slice.first_channel = channel;
    slice.channels = std::min(slice_channels, channels - channel);
    const auto first = static_cast<std::uint32_t>(channel * taps);
    const auto columns = static_cast<std::uint32_t>(slice.channels * taps);
    std::size_t nnz = 0;
    for (std::size_t row = 0; row < rest.size(); ++row) {
      in_slice[row] = rest[row].take_until(first + columns);
      nnz += in_slice[row].columns.size();
    }
    const auto slice_offsets = std::span(offsets).first(columns);
    if (algorithm == Algorithm::dense) {
      pack_dense(in_slice, first, slice_offsets, slice);
      continue;
    }
    slice.offsets.reserve(nnz);
    slice.values.reserve(nnz);
    if (algorithm == Algorithm::pair) {
      pack_pair(in_slice, first, slice_offsets, slice);
      slice.offsets.shrink_to_fit();
    } else if (rotates) {
      pack_rotated(in_slice, first, slice_offsets, static_cast<std::uint32_t>(geometry.kernel_w), slice);
    } else {
      pack_single(in_slice, first, slice_offsets, slice);
    }
  }
  return slices;
}

SparseWeights unpack_weights(const std::vector<std::vector<PackedSlice>>& groups, std::int64_t rows_per_group,
                             std::int64_t columns, const ConvGeometry& geometry, const PanelShape& panel,
                             Algorithm algorithm, bool rotates) {
  constexpr std::size_t kBlockBytes = kLanes * sizeof(float);
  const std::int64_t taps = geometry.kernel_h * geometry.kernel_w;
  std::size_t nnz = 0;
  std::int64_t most_channels = 0;
  for (const std::vector<PackedSlice>& slices : groups) {
    for (const PackedSlice& slice : slices) {
      nnz += slice.values.size();
      most_channels = std::max(most_channels, slice.channels);
    }
  }
  // A block of a panel belongs to one channel and tap, or, in tiles that rotate, to the taps of a row, one per list.
  const std::size_t lists = rotates ? static_cast<std::size_t>(geometry.kernel_w) : 1;
  const std::vector<std::uint16_t> offsets = column_offsets(geometry, panel, most_channels);
  std::vector<std::uint32_t> column_at((std::size_t{1} << 16) / kBlockBytes);
  for (std::size_t column = 0; column < offsets.size(); column += lists) {
    column_at[offsets[column] / kBlockBytes] = static_cast<std::uint32_t>(column);
  }
  SparseWeights::Builder builder(static_cast<std::int64_t>(groups.size()) * rows_per_group, columns,
                                 static_cast<std::int64_t>(nnz));
  std::vector<std::pair<std::uint32_t, float>> row_of_slice;
  for (const std::vector<PackedSlice>& slices : groups) {
    for (std::int64_t row = 0; row < rows_per_group; ++row) {
      for (const PackedSlice& slice : slices) {
        const auto first = static_cast<std::uint32_t>(slice.first_channel * taps);
        row_of_slice.clear();
        for_each_packed(slice, static_cast<std::size_t>(row), algorithm, lists,
                        [&](std::size_t list, std::uint16_t offset, float value) {
                          const std::uint32_t column = column_at[offset / kBlockBytes];
                          row_of_slice.emplace_back(first + column + static_cast<std::uint32_t>(list), value);
                        });
        std::ranges::sort(row_of_slice, {}, &std::pair<std::uint32_t, float>::first);
        for (const auto& [column, value] : row_of_slice) builder.add(column, value);
      }
      builder.end_row();
    }
  }
  return builder.take();
}

}  // namespace sift::cpu
