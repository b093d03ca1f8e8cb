#include "products/listed_rows.h"

#include <algorithm>

#include "base/op.h"

namespace sift::cpu {
namespace {

// Columns that are listed before any of them is multiplied, and rows that are listed together: what is read of a row at
// a time is long enough for hardware prefetching, and there are no more streams than it follows.
constexpr std::int64_t kListedColumns = 1024;
constexpr std::int64_t kListedTogether = 16;

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

void ListedRows::begin(const PackedRows& weights, const PackedRowKernels& kernels, std::int64_t first_row,
                       std::int64_t rows, const ColumnSlices& slices) {
  weights_ = &weights;
  kernels_ = &kernels;
  first_row_ = first_row;
  rows_ = rows;
  stored_ = std::min(rows, weights.rows() - first_row);
  slices_ = slices;
  first_slice_ = end_slice_ = 0;
  room_ = rows * slices.columns + static_cast<std::int64_t>(kListSlack);
  taken_.assign(index(stored_), 0);
}

void ListedRows::describe(std::int64_t slice, RowsArgs& args) {
  if (slice == end_slice_) {
    const std::int64_t together = std::max(kListedColumns / slices_.columns, std::int64_t{1});
    list_slices(slice, weights_->is_list() ? slices_.count : std::min(slice + together, slices_.count));
  }
  args.starts = starts_of(slice);
  args.offsets = offsets_ + place_of(slice);
  args.values = values_ + place_of(slice);
}

void ListedRows::list_slices(std::int64_t first, std::int64_t end) {
  first_slice_ = first;
  end_slice_ = end;
  const std::int64_t count = end - first;
  starts_.assign(index(count * (rows_ + 1)), 0);
  // Two offsets take as much as a float.
  offsets_ = reinterpret_cast<std::uint16_t*>(offset_memory_.floats(index((count * room_ + 1) / 2)));
  values_ = value_memory_.floats(index(count * room_));
  if (weights_->is_list()) {
    list_lists();
  } else {
    const std::int64_t together = std::max(kListedTogether, weights_->rows_together());
    for (std::int64_t row = 0; row < stored_; row += together) {
      ListArgs args{};
      weights_->describe(first_row_ + row, args);
      args.rows = std::min(together, stored_ - row);
      args.ahead = row + 2 * together <= stored_ ? together : 0;
      args.column_bytes = slices_.column_bytes;
      args.taken = taken_.data() + row;
      for (std::int64_t slice = first; slice < end; ++slice) {
        args.first_column = slice * slices_.columns;
        args.end_column = std::min(args.first_column + slices_.columns, weights_->columns());
        args.list_starts = starts_of(slice) + row;
        args.offsets = offsets_ + place_of(slice);
        args.out = values_ + place_of(slice);
        kernels_->list(args);
      }
    }
  }
  for (std::int64_t slice = first; slice < end; ++slice) {
    std::uint32_t* const starts = starts_of(slice);
    std::fill(starts + stored_, starts + rows_ + 1, starts[stored_]);
  }
}

// Of weights that are lists of longer slices.
void ListedRows::list_lists() {
  for (std::int64_t row = 0; row < stored_; ++row) {
    std::int64_t slice = 0;
    std::uint32_t at = starts_of(0)[row];
    const auto end_slice = [&] {
      starts_of(slice)[row + 1] = at;
      if (++slice < slices_.count) at = starts_of(slice)[row];
    };
    for (const PackedRows::Slice& part : weights_->slices()) {
      const std::uint16_t* const columns = part.columns.data();
      const float* const values = part.values.data();
      const std::size_t end = part.starts[index(first_row_ + row) + 1];
      for (std::size_t i = part.starts[index(first_row_ + row)]; i < end;) {
        // Columns of the part that this slice begins and ends with.
        const std::int64_t first_column = slice * slices_.columns - part.first;
        const std::int64_t end_column = first_column + slices_.columns;
        std::uint16_t* const offsets = offsets_ + place_of(slice);
        float* const listed = values_ + place_of(slice);
        for (; i < end && columns[i] < end_column; ++i, ++at) {
          offsets[at] = static_cast<std::uint16_t>((columns[i] - first_column) * slices_.column_bytes);
          listed[at] = values[i];
        }
        if (i < end) end_slice();
      }
    }
    while (slice < slices_.count) end_slice();
  }
}

void fill_in_rows(const PackedRows& weights, const PackedRowKernels& kernels, std::int64_t first_row, std::int64_t rows,
                  float* to) {
  if (!weights.is_list()) {
    FillInArgs args{};
    weights.describe(first_row, args);
    args.rows = rows;
    args.out = to;
    kernels.fill_in(args);
    return;
  }
  const std::int64_t row_floats = weights.words() * kWordColumns;
  std::fill_n(to, ceil_div(rows, 4) * 4 * row_floats, 0.0F);
  for (const PackedRows::Slice& slice : weights.slices()) {
    for (std::int64_t row = 0; row < rows; ++row) {
      float* const own = to + row / 4 * 4 * row_floats + 4 * slice.first + row % 4;
      const std::size_t end = slice.starts[index(first_row + row) + 1];
      for (std::size_t i = slice.starts[index(first_row + row)]; i < end; ++i) {
        own[4 * std::size_t{slice.columns[i]}] = slice.values[i];
      }
    }
  }
}

}  // namespace sift::cpu
