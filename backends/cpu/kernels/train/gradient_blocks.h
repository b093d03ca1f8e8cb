// Which rows' weights are summed together, so that few operands are loaded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sift::cpu {

// Adjacent weights of a row, in a slice of columns.
struct GradientPiece {
  std::uint32_t row;
  std::uint32_t begin;
  std::uint32_t count;
};

// Orders pieces, which come with the longest first, into blocks for generated code; returns the pieces of each block.
// `columns_of` are those of all weights; the pieces' lie within `slice_columns` of the first one, `column_begin`.
std::vector<std::uint32_t> group_pieces(std::vector<GradientPiece>& pieces, std::span<const std::uint32_t> columns_of,
                                        std::uint32_t column_begin, std::uint32_t slice_columns);

}  // namespace sift::cpu
