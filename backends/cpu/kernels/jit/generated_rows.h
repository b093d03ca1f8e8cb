// Sparse rows as machine code: which operand a non-zero multiplies, and to which sum it is added, is in the
// instructions.
//
// Up to kCodeRows rows are one group. Its sums of a block stay in registers, one for each row, while the columns of the
// slice go by: the operand of a column is loaded once for all rows of the group, and each non-zero is one instruction,
// which reads 4 bytes, its weight, where the other forms read 64, an operand.
//
// A group's columns are cut into parts. The code of a part is a body, which multiplies, between two pieces that all
// share: a start, which sets the sums, and a finish, which stores them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "simd/kernel_table.h"

namespace sift::cpu {

inline constexpr std::int64_t kCodeRows = 28;  // of 32 registers; the other four hold operands

// A non-zero of a group of rows: its row in the group, and where its operand lies, in bytes of the panel.
struct CodeEntry {
  std::uint32_t offset;
  std::uint32_t row;

  bool operator==(const CodeEntry&) const = default;
};

// Parts that a group with this many non-zeros and columns is cut into, so that each stays in the first-level cache
// while the blocks of a tile go through it.
std::uint32_t body_parts(std::size_t nnz, std::size_t columns);

// Bytes that a body takes at most, without its prefetching.
std::size_t most_body_bytes(std::size_t nnz, std::size_t columns);
inline constexpr std::size_t kPrefetchBytes = 7;  // of an instruction

// Writes the body for non-zeros in ascending order of their offsets, which is that of their weights; returns its end.
// In between, it prefetches the given numbers of lines of two places.
std::byte* write_body(std::byte* at, std::span<const CodeEntry> entries, std::uint32_t code_ahead,
                      std::uint32_t weights_ahead);

// What the body was written from.
std::vector<CodeEntry> read_body(const std::byte* body);

// Writes what all code shares, if that has not been done; throws CodeMemoryError. Before any rows that are code.
void prepare_generated();

// The RowsFunction of rows that are code.
void rows_generated(const RowsArgs& args);

}  // namespace sift::cpu
