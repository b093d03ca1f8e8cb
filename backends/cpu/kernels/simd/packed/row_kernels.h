// Kernels of weights that are stored row by row as bits and packed values (weights/packed_rows.h), for few rows of x.
//
// Such a product takes as long as its weights take to come from memory. So each byte of them is read once, in order,
// and asked for some time ahead; a row's sums stay in registers, and x in the first-level cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/value_type.h"
#include "simd/packed/windows.h"

namespace sift::cpu {

// Columns that a word of bits stands for.
inline constexpr std::int64_t kWordColumns = 64;
// Words whose bits are a line of 64 bytes.
inline constexpr std::int64_t kLineWords = 8;
// Bytes behind the last value that kernels may read.
inline constexpr std::size_t kValuePadding = 64;
// Entries behind the last one of a list that may be written.
inline constexpr std::size_t kListSlack = 64;
// Scales of groups of columns: a group has a multiple of these.
inline constexpr std::int64_t kGroupMultiple = 16;

// Rows of x that a call has at most.
inline constexpr int kMostRows = 16;
// Parts of x that a call has at most: some rows of weights are multiplied by all of them while they are in a cache.
inline constexpr int kMostParts = 4;
// Rows of x that some kernels multiply together. Of each such group, a word of all rows lies before the next word.
inline constexpr int kRowsOfGroup = 8;
// More rows of x than there are.
inline constexpr std::int64_t kAnyRows = std::int64_t{1} << 40;
// Rows of x that lie interleaved where weights become lists; those behind the last of x are zero.
static inline constexpr int interleaved_rows(int rows) { return rows <= 4 ? 4 : rows <= 8 ? 8 : 16; }

// What rows of x have become.
enum class OperandForm : std::uint8_t {
  natural,      // as they were
  shuffled,     // in the order in which the kernel's values come out of their bytes; as they were in groups
  fixed16,      // fixed-point numbers, a byte of each after the other: integer products and sums are exact
  fixed24,      // the same with a byte more
  fixed32,      // with two more, where the largest number is far above the others of its row
  tiles16,      // as fixed16, in tiles of several rows of x
  tiles24,      // as fixed24, likewise
  tiles32,      // as fixed32, likewise
  interleaved,  // [columns][interleaved_rows], for weights that become lists
  windowed,     // [words times 4][rows of a group][16], for weights in windows
  windowed16,   // as fixed16, for weights in windows: [limbs][words][64] of each row
  windowed24,   // as fixed24, likewise
  windowed32,   // as fixed32, likewise
  unbounded     // as they were, in no groups; some are infinite or NaN, or beyond what kernels multiply int8 by
};

struct OperandArgs {
  ValueType type;
  std::int64_t group_columns;  // of a scale; 0: all columns
  bool lists;                  // weights become lists, unless a number is infinite or NaN
  bool windows;                // weights are in windows of columns
  bool two_bytes;              // fixed-point numbers may have two bytes
  std::int64_t columns;        // of the weights
  std::int64_t words;
  int rows;           // of x, up to kMostRows
  const float* from;  // [rows][columns]
  float* x;           // gets [rows][words][64], with zeros behind the last column, or as the result says; aligned to 64
                      // bytes, with room for interleaved_rows()
  float* scales;      // [rows], of fixed-point numbers: what an integer is to be multiplied by
};

struct PackedRowsArgs {
  ValueType type;
  const std::uint64_t* masks;  // [rows][words], bit i for column i of a word; null: all columns are active
  const std::byte* values;     // of the active columns, row by row; kValuePadding bytes more may be read
  const std::size_t* starts;   // [rows + 1], bytes at which a row's values begin
  std::int64_t columns;
  std::int64_t words;
  const float* scales;           // [rows], or [rows][groups]; null: 1
  std::int64_t group_columns;    // of a scale; 0: all columns
  std::int64_t groups;           // of a row
  const std::int32_t* sums;      // of int8: [rows], of a row's values
  ColumnWindows windows;         // of weights that are in them, instead of masks and values
  double word_values;            // that a word has in the mean of all rows
  std::int64_t lines_per_word;   // lines of 64 bytes that a word's values take
  std::int64_t lines_per_block;  // the same of the words whose masks are a line
  bool into_level2;              // lines are prefetched into the second-level cache instead of the first
  OperandForm form;
  const float* x;             // as `operands` left them
  const float* x_scales;      // likewise
  int x_rows;                 // up to kMostRows
  const float* bias;          // [rows]
  float* out;                 // out[row * row_stride + i * x_stride] = bias + product with row i of x
  std::ptrdiff_t row_stride;  // floats
  std::ptrdiff_t x_stride;
  std::int64_t row_begin;  // of weights in windows: where a block begins
  std::int64_t row_end;
};

// Some rows of weights as they are packed. Arrays of rows begin at the first of them.
struct SomeRows {
  ValueType type;
  const std::uint64_t* masks;  // [rows][words]; null: all columns are active
  std::int64_t columns;
  std::int64_t words;
  const std::byte* values;
  const std::size_t* starts;   // [rows], bytes from `values` to a row's
  const float* scales;         // [rows][groups]; null: 1
  std::int64_t group_columns;  // 0: one scale
  std::int64_t groups;
};

// Active weights, columns [first_column, end_column) of them, as the lists that csr has.
struct ListArgs : SomeRows {
  ColumnWindows windows;   // as in PackedRowsArgs; of all rows
  std::int64_t first_row;  // of the weights
  std::int64_t rows;
  std::int64_t ahead;          // the rows this far behind come next, and are asked for; 0 if there are none
  std::int64_t first_column;   // a multiple of 16
  std::int64_t end_column;     // a multiple of 16, or where rows end
  std::uint32_t column_bytes;  // of a column's operands
  std::size_t* taken;          // [rows], weights of columns before; those that are listed are added
  std::uint32_t* list_starts;  // [rows + 1], of which the first is given
  std::uint16_t* offsets;      // kListSlack more may be written
  float* out;                  // likewise
};

// Rows of weights in fours with their zeros, as kernels of dense rows read them; not of weights in windows.
struct FillInArgs : SomeRows {
  std::int64_t rows;
  float* out;  // [rows / 4, rounded up][words * 64][4], aligned to 64 bytes; anything behind a row's last column
};

// Instructions beyond avx512; each has those before it, and VBMI2 comes with VBMI.
enum class Extension : std::uint8_t { none, vnni, vbmi2, amx };

// What says how long a product takes, beside sizes and the density.
struct PackedKind {
  ValueType type;
  bool grouped;    // with scales of groups of columns
  bool two_bytes;  // as OperandArgs has it
};

struct PackedRowKernels {
  OperandForm (*operands)(const OperandArgs&);
  // Up to kMostParts parts of the rows of x, by the same weights.
  void (*multiply)(const PackedRowsArgs* parts, int count);
  void (*list)(const ListArgs&);
  void (*fill_in)(const FillInArgs&);
  // Several rows of x are multiplied faster by lists of weights if the weights have a density below this.
  double (*list_below)(const PackedKind& kind, int x_rows);
  // Rows of x up to which weights of this density are multiplied as they are packed, kMostRows at a time, faster than
  // by what is made of them for all rows.
  std::int64_t (*most_rows)(const PackedKind& kind, double density);
  // The same of weights in windows.
  std::int64_t (*most_rows_in_windows)(ValueType type);
  // Up to how many times the bytes of bits and values sparse weights with at most a scale per row are multiplied faster
  // in windows of columns; 0: never.
  double (*window_bytes)(ValueType type);
  // Densities below which weights are multiplied faster as lists: fp32, and int8 with at most a scale per row.
  double floats_as_lists_below;
  double bytes_as_lists_below;
};

}  // namespace sift::cpu
