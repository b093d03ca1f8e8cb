#include "weights/packed_weights.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <span>

#include "weights/pack_code.h"
#include "weights/pack_lists.h"

namespace sift::cpu {
namespace {

// The more rows in a band, the more equal the lists of two neighbours; the fewer, the more evenly threads share them.
constexpr std::int64_t kLeastBandRows = 16;
constexpr std::int64_t kMostBandRows = 256;
constexpr std::int64_t kBandsPerThread = 4;

std::uint32_t size_of(const auto& list) { return static_cast<std::uint32_t>(list.size()); }

void pack_csr_by_tap(std::span<const WeightRow> rows, std::uint32_t first, std::span<const std::uint16_t> offsets,
                     std::uint32_t kernel_w, PackedSlice& slice) {
  slice.starts.push_back(0);
  for (const WeightRow& row : rows) {
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

void pack_csr_pairs(std::span<const WeightRow> rows, std::uint32_t first, std::span<const std::uint16_t> offsets,
                    PackedSlice& slice) {
  std::vector<std::uint16_t> only_offsets[2];
  std::vector<float> only_values[2];
  for (std::size_t pair = 0; pair < rows.size(); pair += 2) {
    const WeightRow& a = rows[pair];
    const WeightRow& b = rows[pair + 1];
    for (int side = 0; side < 2; ++side) {
      only_offsets[side].clear();
      only_values[side].clear();
    }
    slice.starts.push_back(size_of(slice.offsets));
    slice.value_starts.push_back(static_cast<std::uint32_t>(slice.values.size()));
    const auto only = [&](std::size_t side, const WeightRow& row, std::size_t i) {
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

void pack_dense(std::span<const WeightRow> rows, std::size_t columns, PackedSlice& slice) {
  slice.columns = static_cast<std::uint32_t>(columns);
  slice.values.assign(rows.size() * columns, 0.0F);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    float* const group = slice.values.data() + row / 4 * columns * 4 + row % 4;
    for (std::size_t i = 0; i < rows[row].columns.size(); ++i) {
      group[std::size_t{rows[row].columns[i]} * 4] = rows[row].values[i];
    }
  }
}

}  // namespace

std::int64_t PackedSlice::bytes() const {
  return static_cast<std::int64_t>(offsets.capacity() * sizeof(offsets[0]) + values.capacity() * sizeof(values[0]) +
                                   places.capacity() * sizeof(places[0]) +
                                   (starts.capacity() + value_starts.capacity()) * sizeof(starts[0]) +
                                   order.capacity() * sizeof(order[0])) +
         code_bytes;
}

void PackedSlice::keep_places() {
  places.resize(values.size());
  std::ranges::transform(values, places.begin(), [](float place) { return std::bit_cast<std::uint32_t>(place); });
}

void PackedSlice::describe(RowsArgs& args) const {
  args.starts = starts.data();
  args.value_starts = value_starts.data();
  args.offsets = offsets.data();
  args.values = values.data();
  args.order = order.data();
  args.code = code.data();
  args.units = units;
  args.columns = args.row_columns = columns;
}

std::int64_t padded_rows(std::int64_t rows) { return (rows + 3) / 4 * 4; }

std::int64_t band_rows(std::int64_t rows, WeightForm form, int threads) {
  if (form == WeightForm::code) return ceil_div(padded_rows(rows), ceil_div(padded_rows(rows), kCodeRows));
  if (form != WeightForm::sell) return 4;
  return std::clamp(padded_rows(rows / (kBandsPerThread * threads)), kLeastBandRows, kMostBandRows);
}

std::vector<std::uint16_t> column_offsets(const ConvGeometry& geometry, const PanelShape& panel,
                                          std::int64_t channels) {
  std::vector<std::uint16_t> offsets;
  offsets.reserve(static_cast<std::size_t>(channels * geometry.kernel_h * geometry.kernel_w));
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    for (std::int64_t y = 0; y < geometry.kernel_h; ++y) {
      for (std::int64_t x = 0; x < geometry.kernel_w; ++x) {
        const std::int64_t floats = channel * panel.channel_floats + panel.tap_floats(y, x);
        offsets.push_back(static_cast<std::uint16_t>(floats * static_cast<std::int64_t>(sizeof(float))));
      }
    }
  }
  return offsets;
}

std::vector<PackedSlice> pack_weights(const SparseWeights& weights, std::int64_t first_row, std::int64_t rows,
                                      const ConvGeometry& geometry, const PanelShape& panel, const Tiling& tiling,
                                      std::int64_t band_rows, ThreadPool* pool) {
  const WeightForm form = tiling.form;
  if (has_lists(form)) {
    StoredRows source(weights);
    const auto make_source = [&] { return std::make_unique<StoredRows>(weights); };
    return pack_lists(source, make_source, first_row, rows, geometry, panel, tiling, band_rows, pool);
  }
  const std::int64_t taps = geometry.kernel_h * geometry.kernel_w;
  const std::int64_t channels = weights.columns() / taps;
  std::vector<WeightRow> rest(static_cast<std::size_t>(padded_rows(rows)));
  for (std::int64_t row = 0; row < rows; ++row) {
    rest[static_cast<std::size_t>(row)] = {weights.row_columns(first_row + row), weights.row_values(first_row + row)};
  }
  std::vector<PackedSlice> slices;
  if (form == WeightForm::code) {
    PackedSlice& all = slices.emplace_back();
    all.channels = channels;
    const CodeWeight weight = tiling.loads_in_fours ? CodeWeight::single_in_fours : CodeWeight::single;
    pack_code(rest, channels, taps, tiling.unit_channels, band_rows, all, weight, pool);
    return slices;
  }
  if (form == WeightForm::dense) {
    PackedSlice& all = slices.emplace_back();
    all.channels = channels;
    pack_dense(rest, static_cast<std::size_t>(weights.columns()), all);
    return slices;
  }
  const std::int64_t slice_channels = std::min(tiling.slice_channels, channels);
  const std::vector<std::uint16_t> offsets = column_offsets(geometry, panel, slice_channels);
  std::vector<WeightRow> in_slice(rest.size());
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
    slice.values.reserve(nnz);
    slice.offsets.reserve(nnz + kOffsetSlack);
    if (form == WeightForm::csr_pairs) {
      pack_csr_pairs(in_slice, first, slice_offsets, slice);
    } else {
      pack_csr_by_tap(in_slice, first, slice_offsets, static_cast<std::uint32_t>(geometry.kernel_w), slice);
    }
    slice.offsets.resize(slice.offsets.size() + kOffsetSlack);
    slice.offsets.shrink_to_fit();
  }
  return slices;
}

}  // namespace sift::cpu
