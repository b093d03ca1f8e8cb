// Reads weights out of the lists that pack_lists has made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/conv_geometry.h"
#include "weights/packed_weights.h"
#include "weights/row_source.h"

namespace sift::cpu {

// By floats of a panel of `channels` channels, the column that reads there; what no column reads, and the place behind
// the panel, have 0. `step`: only of each so-many-th column.
std::vector<std::uint32_t> columns_at(const ConvGeometry& geometry, const PanelShape& panel, std::int64_t channels,
                                      std::size_t step = 1);

// The most channels that a slice has.
std::int64_t most_channels(const std::vector<std::vector<PackedSlice>>& groups);

class UnpackedRows final : public RowSource {
 public:
  // All groups' slices; the other arguments are those of pack_lists.
  UnpackedRows(const std::vector<std::vector<PackedSlice>>& groups, std::int64_t rows_per_group, std::int64_t columns,
               const ConvGeometry& geometry, const PanelShape& panel, const Tiling& tiling, std::int64_t band_rows);

  std::int64_t columns() const override { return columns_; }
  double row_nnz() override;
  std::span<const WeightRow> read(std::int64_t first, std::int64_t count) override;

 private:
  // A slice of the group that is read.
  struct Lists {
    const std::uint32_t* starts;
    const std::uint16_t* offsets;
    const std::byte* values;  // or places of values that change
    std::uint32_t first_column;
    std::vector<std::uint32_t> places;  // of rows

    // Where the row's entries begin and end, each `step`-th; there are none if the begin is not before the end.
    std::size_t begin(std::size_t row, std::size_t step) const {
      return starts[places[row] / step] + places[row] % step;
    }
    std::size_t end(std::size_t row, std::size_t step) const { return starts[places[row] / step + 1]; }
    // The row's entries, with padding.
    std::size_t longest(std::size_t row, std::size_t step) const {
      return (end(row, step) - starts[places[row] / step]) / step;
    }
  };

  void open(std::size_t group);
  void add_row(std::size_t row);
  std::size_t copy(const Lists& lists, std::size_t begin, std::size_t end, std::uint32_t* columns, float* values) const;

  const std::vector<std::vector<PackedSlice>>& groups_;
  std::int64_t rows_per_group_;
  std::int64_t columns_;
  std::int64_t taps_;
  std::int64_t band_rows_;
  bool is_padded_;
  std::size_t step_;  // from an entry of a list to the next
  std::size_t panel_bytes_;
  std::vector<std::uint32_t> column_at_;
  std::optional<double> row_nnz_;  // counted once, for all groups
  std::size_t group_;              // that is read; as many as there are before the first
  std::vector<Lists> lists_;
  // What was read last, and room for more.
  std::vector<std::uint32_t> read_columns_;
  std::vector<float> read_values_;
  std::vector<std::size_t> ends_;  // of rows in it
  std::vector<WeightRow> rows_;
};

}  // namespace sift::cpu
