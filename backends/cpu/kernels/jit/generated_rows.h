// Sparse rows as machine code: which operand a non-zero multiplies, and to which sum it is added, is in the
// instructions.
//
// Up to kCodeRows rows are one group. Its sums of a block stay in registers, one for each row, while the columns of the
// slice go by: the operand of a column is loaded once for all rows of the group, and each non-zero is one instruction,
// which reads 4 bytes, its weight, where the other forms read 64, an operand.
//
// A group's channels are cut into units. The code of a unit is a body, which multiplies; as many of them as a slice has
// follow each other, between two pieces that all share: a start, which sets the sums, and a finish, which stores them.
// Nothing in a body depends on the shape of the input: a channel's operand is at a fixed distance from the block's, and
// how far a tap is from the first is read from a table.
#pragma once

#include "jit/code_body.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// Writes what all code shares, if that has not been done; throws CodeMemoryError. Before any rows that are code.
void prepare_generated();

// The RowsFunction of rows that are code. Of quads, biases and sums are integers; sums are not stored directly.
void rows_generated(const RowsArgs& args);

}  // namespace sift::cpu
