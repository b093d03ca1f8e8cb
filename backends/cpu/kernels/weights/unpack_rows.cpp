// Weights out of what was packed of them.
#include <algorithm>
#include <bit>
#include <cstddef>

#include "weights/packed_rows.h"

namespace sift::cpu {
namespace {

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

float PackedRows::scale_at(std::int64_t row, std::int64_t column) const {
  if (scales_.factors.empty()) return 1.0F;
  const std::int64_t group = scales_.group_columns == 0 ? 0 : column / scales_.group_columns;
  return scales_.factors[index(row * groups_ + group)];
}

SparseWeights PackedRows::windowed_source(bool scaled) const {
  SparseWeights::Builder builder(rows_, columns_, nnz_);
  struct Entry {
    std::uint32_t column;
    float value;
  };
  std::vector<Entry> entries[kWindowRows];
  for (std::int64_t first = 0; first < rows_; first += kWindowRows) {
    for (auto& own : entries) own.clear();
    for_each_in_windows(windows_->args(), first / kWindowRows, columns_,
                        [&](std::int64_t lane, std::int64_t column, const std::byte* value) {
                          entries[lane].push_back({static_cast<std::uint32_t>(column), float_at(type_, value)});
                        });
    for (std::int64_t row = first; row < std::min(first + kWindowRows, rows_); ++row) {
      const float scale = scaled ? scale_at(row, 0) : 1.0F;
      for (const Entry& entry : entries[row - first]) builder.add(entry.column, entry.value * scale);
      builder.end_row();
    }
  }
  return builder.take();
}

SparseWeights PackedRows::source(bool scaled) const {
  if (is_windowed()) return windowed_source(scaled);
  SparseWeights::Builder builder(rows_, columns_, nnz_);
  const bool all = !is_list() && masks_.empty();
  std::vector<float> dense;
  for (std::int64_t row = 0; row < rows_; ++row) {
    for (const Slice& slice : slices_) {
      const float scale = scaled ? scale_at(row, 0) : 1.0F;
      for (std::size_t i = slice.starts[index(row)]; i < slice.starts[index(row) + 1]; ++i) {
        builder.add(static_cast<std::uint32_t>(slice.first) + slice.columns[i], slice.value(i) * scale);
      }
    }
    const std::byte* value = is_list() ? nullptr : values_.data() + starts_[index(row)];
    for (std::int64_t word = 0; word < (is_list() ? 0 : words_); ++word) {
      std::uint64_t bits = all ? ~std::uint64_t{0} : masks_[index(row * words_ + word)];
      for (; bits != 0; bits &= bits - 1, value += bytes_of(type_)) {
        const std::int64_t column = word * kWordColumns + std::countr_zero(bits);
        const float number = float_at(type_, value);
        const float weight = scaled ? number * scale_at(row, column) : number;
        if (all) {
          dense.push_back(weight);
        } else {
          builder.add(static_cast<std::uint32_t>(column), weight);
        }
      }
    }
    builder.end_row();
  }
  return all ? SparseWeights::from_all(rows_, columns_, dense) : builder.take();
}

}  // namespace sift::cpu
