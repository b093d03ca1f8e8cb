// A slice of the weights as machine code, see generated_rows.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "jit/code_memory.h"
#include "jit/generated_rows.h"
#include "weights/packed_weights.h"

namespace sift::cpu {

// What is left of a row of the weights.
struct WeightRow {
  std::span<const std::uint32_t> columns;
  std::span<const float> values;

  // Splits off what lies before `column`.
  WeightRow take_until(std::uint32_t column) {
    const auto count =
        static_cast<std::size_t>(std::lower_bound(columns.begin(), columns.end(), column) - columns.begin());
    const WeightRow taken{columns.first(count), values.first(count)};
    columns = columns.subspan(count);
    values = values.subspan(count);
    return taken;
  }
};

// Writes the slices of a convolution's group, one after the other. All but `pack` throw CodeMemoryError where the
// system gives no memory for code.
class CodePacker {
 public:
  // `rows` in full; `offsets` of the columns of the largest slice.
  CodePacker(std::span<const WeightRow> rows, std::span<const std::uint32_t> offsets, std::int64_t slices,
             std::int64_t group_rows, std::int64_t tile_blocks);

  // `rows` in the slice of this many columns that begins at column `first`.
  void pack(std::span<const WeightRow> rows, std::uint32_t first, std::size_t columns, PackedSlice& slice);

  // After the last slice: from here on the code can run.
  void seal();

 private:
  void rank_columns(std::size_t columns);
  void list_group(std::span<const WeightRow> group, std::uint32_t first, float* values);
  std::size_t end_of_column(std::size_t at) const;

  std::span<const std::uint32_t> offsets_;
  std::size_t group_rows_;
  std::size_t tile_blocks_;
  std::shared_ptr<CodeMemory> memory_;
  std::byte* at_;
  std::vector<std::uint32_t> ranks_;  // the place of each column among all, in ascending order of their offsets
  std::vector<std::size_t> places_;
  std::vector<CodeEntry> entries_;
};

}  // namespace sift::cpu
