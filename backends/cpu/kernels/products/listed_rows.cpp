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

// Places of columns in a slice that begins with column `first`, which may be before that of the list.
void copy_offsets(const std::uint16_t* columns, std::size_t count, std::uint32_t first, std::uint32_t column_bytes,
                  std::uint16_t* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<std::uint16_t>((columns[i] - first) * column_bytes);
}

template <typename Value>
void copy_values(const Value* values, std::size_t count, float scale, float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<float>(values[i]) * scale;
}

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
  const std::span<const float> scales = weights_->scales();
  const auto usual = static_cast<std::size_t>(weights_->density() * static_cast<double>(slices_.columns));
  for (std::int64_t row = 0; row < stored_; ++row) {
    const float scale = scales.empty() ? 1.0F : scales[index(first_row_ + row)];
    std::int64_t slice = 0;
    std::uint32_t at = starts_of(0)[row];
    const auto end_slice = [&] {
      starts_of(slice)[row + 1] = at;
      if (++slice < slices_.count) at = starts_of(slice)[row];
    };
    for (const PackedRows::Slice& part : weights_->slices()) {
      const std::uint16_t* const columns = part.columns.data();
      const std::size_t end = part.starts[index(first_row_ + row) + 1];
      for (std::size_t i = part.starts[index(first_row_ + row)]; i < end;) {
        // Columns of the part that this slice begins and ends with.
        const std::int64_t first_column = slice * slices_.columns - part.first;
        const std::int64_t end_column = first_column + slices_.columns;
        // About as many as in the mean.
        std::size_t next = std::min(i + usual, end);
        while (next > i && columns[next - 1] >= end_column) --next;
        while (next < end && columns[next] < end_column) ++next;
        const std::size_t count = next - i;
        copy_offsets(columns + i, count, static_cast<std::uint32_t>(first_column), slices_.column_bytes,
                     offsets_ + place_of(slice) + at);
        float* const listed = values_ + place_of(slice) + at;
        part.bytes.empty() ? copy_values(part.values.data() + i, count, scale, listed)
                           : copy_values(part.bytes.data() + i, count, scale, listed);
        at += static_cast<std::uint32_t>(count);
        i = next;
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
  const std::span<const float> scales = weights.scales();
  for (const PackedRows::Slice& slice : weights.slices()) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const float scale = scales.empty() ? 1.0F : scales[index(first_row + row)];
      float* const own = to + row / 4 * 4 * row_floats + 4 * slice.first + row % 4;
      const std::size_t end = slice.starts[index(first_row + row) + 1];
      for (std::size_t i = slice.starts[index(first_row + row)]; i < end; ++i) {
        own[4 * std::size_t{slice.columns[i]}] = slice.value(i) * scale;
      }
    }
  }
}

}  // namespace sift::cpu
