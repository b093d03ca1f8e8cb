// The weights of a matrix product in one form for any number of rows of x: few of them take as long as the weights take
// to come from memory, and many multiply weights by what is made of a part of them meanwhile.
//
//   bitmap  per row of outputs a bit for each column, and the values of those that are set, in order
//   dense   the values alone, where all columns are active
//   list    columns of 16 bits and values, for floats and bytes that are so few that kernels multiply lists faster
//   windows  sixteen rows in the lanes, for few weights with at most a scale per row where kernels prefer them: a byte
//            and the value of each active weight, and what lanes leave empty (windows.h)
//
// Values are float32, bfloat16, float16 or int8 with a scale per row, or per row and group of columns. An active weight
// of density d takes, per column, 1/8 + 4 d bytes as float32, 1/8 + 2 d in 16 bits, and 1/8 + d as int8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/large_pages.h"
#include "base/value_type.h"
#include "simd/packed/row_kernels.h"
#include "weights/sparse_weights.h"
#include "weights/windowed_rows.h"

namespace sift::cpu {

// What values are multiplied by: [rows], or [rows][groups] of `group_columns` each, the last one perhaps fewer.
struct PackedScales {
  std::vector<float> factors;      // empty: 1
  std::int64_t group_columns = 0;  // 0: all columns of a row
};

// What the kernels that weights are packed for do, as PackedRowKernels has it.
struct PackedFor {
  double floats_as_lists_below = 0.125;
  double bytes_as_lists_below = 0;
  double most_window_bytes = 0;
};

// Immutable once made, and shared by operators.
class PackedRows {
 public:
  // Values of up to 65536 columns, so that a column's index takes 16 bits.
  struct Slice {
    std::int64_t first = 0;
    std::vector<std::uint32_t> starts;
    std::vector<std::uint16_t, LargePageAllocator<std::uint16_t>> columns;
    std::vector<float, LargePageAllocator<float>> values;
    std::vector<std::int8_t, LargePageAllocator<std::int8_t>> bytes;  // of int8, in place of values

    float value(std::size_t i) const { return bytes.empty() ? values[i] : static_cast<float>(bytes[i]); }
  };

  // Values are rounded to the nearest that the type has, ties to even. int8 without scales gets a scale per row, the
  // largest magnitude over 127; with scales, weights must be whole numbers from -128 to 127. Where a weight is beyond
  // what float16 holds, all stay float32. Throws std::invalid_argument for weights that are empty, and for scales that
  // are not as many as stated, or not of multiples of 16 columns.
  //
  // Where kernels take values one by one, lists are faster: float32 has them at any density. Kernels of all instruction
  // sets multiply by what is packed for any of them.
  static PackedRows pack(const SparseWeights& weights, ValueType type, PackedScales scales = {},
                         const PackedFor& kernels = {});

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t nnz() const { return nnz_; }
  std::int64_t words() const { return words_; }
  std::int64_t bytes() const;
  ValueType type() const { return type_; }
  const char* form() const;  // as above
  double density() const {
    return static_cast<double>(nnz_) / (static_cast<double>(rows_) * static_cast<double>(columns_));
  }

  // Active weights of rows [begin, end).
  std::int64_t nnz_of(std::int64_t begin, std::int64_t end) const;

  bool is_list() const { return !slices_.empty(); }
  bool is_windowed() const { return windows_.has_value(); }
  // Rows that lie side by side: parts of rows had best begin at multiples of these.
  std::int64_t rows_together() const { return is_windowed() ? kWindowRows : 1; }
  const std::vector<Slice>& slices() const { return slices_; }

  // Bounds of ranges of rows that take about as many bytes.
  std::span<const std::int64_t> chunks() const { return chunks_; }

  // The fields that say which weights; not for lists.
  void describe(PackedRowsArgs& args) const;
  // The same of rows from `row` on, for lists of some of their columns.
  void describe(std::int64_t row, ListArgs& args) const;
  void describe(std::int64_t row, SomeRows& args) const;
  bool is_grouped() const { return scales_.group_columns != 0; }

  // The weights as float32; scales multiplied in, or the numbers as they are held.
  SparseWeights source(bool scaled = true) const;
  std::span<const float> scales() const { return scales_.factors; }
  std::int64_t group_columns() const { return scales_.group_columns; }

 private:
  PackedRows() = default;
  void pack_lists(const SparseWeights& weights);
  bool suits_lists(const PackedFor& kernels) const;
  void pack_values(const SparseWeights& weights);
  void use_windows(const SparseWeights& weights, double most_bytes);
  void release_values();
  void cut(const SparseWeights& weights);
  SparseWeights windowed_source(bool scaled) const;
  float scale_at(std::int64_t row, std::int64_t column) const;

  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  std::int64_t nnz_ = 0;
  std::int64_t words_ = 0;
  std::int64_t groups_ = 1;
  ValueType type_ = ValueType::float32;
  PackedScales scales_;
  std::vector<std::uint64_t, LargePageAllocator<std::uint64_t>> masks_;  // [rows][words]; empty if all are active
  std::vector<std::byte, LargePageAllocator<std::byte>> values_;         // with kValuePadding bytes behind
  std::vector<std::size_t> starts_;                                      // [rows + 1]
  std::vector<std::int32_t> sums_;                                       // of int8: of each row's values
  std::vector<Slice> slices_;
  std::optional<WindowedRows> windows_;
  std::vector<std::int64_t> chunks_;
};

}  // namespace sift::cpu
