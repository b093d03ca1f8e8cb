// What the micro-kernels for many rows of x take, out of some rows of packed weights: lists, a slice of columns after
// the other, or dense rows with zeros between the weights.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "simd/kernel_table.h"
#include "weights/packed_rows.h"

namespace sift::cpu {

// Columns whose operands lie in a panel together.
struct ColumnSlices {
  std::int64_t columns;        // of a slice; the last one may have fewer
  std::int64_t count;          // of slices
  std::uint32_t column_bytes;  // of a column's operands in the panel
};

// csr of rows [first_row, first_row + rows). Buffers keep their memory from one use to the next.
class ListedRows {
 public:
  // `rows` may be up to three more than there are, which have empty lists.
  void begin(const PackedRows& weights, const PackedRowKernels& kernels, std::int64_t first_row, std::int64_t rows,
             const ColumnSlices& slices);

  // The fields of `args` that say which weights, of slice 0, 1, and so on.
  void describe(std::int64_t slice, RowsArgs& args);

 private:
  void list_slices(std::int64_t first, std::int64_t end);
  void list_lists();
  std::uint32_t* starts_of(std::int64_t slice) { return starts_.data() + (slice - first_slice_) * (rows_ + 1); }
  std::int64_t place_of(std::int64_t slice) const { return (slice - first_slice_) * room_; }

  const PackedRows* weights_;
  const PackedRowKernels* kernels_;
  std::int64_t first_row_;
  std::int64_t rows_;
  std::int64_t stored_;  // of the rows
  ColumnSlices slices_;
  // Slices that are listed.
  std::int64_t first_slice_;
  std::int64_t end_slice_;
  std::int64_t room_;                  // of a slice, for all columns of all rows
  std::vector<std::size_t> taken_;     // [rows], weights of slices before
  std::vector<std::uint32_t> starts_;  // [slices][rows + 1]
  AlignedBuffer offset_memory_;
  AlignedBuffer value_memory_;
  std::uint16_t* offsets_;  // [slices][room]
  float* values_;           // likewise
};

// Rows in fours with their zeros, [rows / 4, rounded up][words of columns][4], aligned to 64 bytes.
void fill_in_rows(const PackedRows& weights, const PackedRowKernels& kernels, std::int64_t first_row, std::int64_t rows,
                  float* to);

}  // namespace sift::cpu
