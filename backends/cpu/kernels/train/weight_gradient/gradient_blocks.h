// Chooses the rows whose weights are summed together, so that few operands are loaded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sift::cpu {

// Adjacent weights of a row, in a slice of columns.
struct GradientPiece {
  std::uint32_t row = 0;  // of the chunk
  std::span<const std::uint32_t> columns;
  std::span<const float> places;  // of ChangingValues
};

// Groups pieces, given with the longest first, into blocks for generated code; returns the pieces of each block. All
// columns are within `slice_columns` of the first one, `column_begin`.
std::vector<std::uint32_t> group_pieces(std::vector<GradientPiece>& pieces, std::uint32_t column_begin,
                                        std::uint32_t slice_columns);

}  // namespace sift::cpu
