// Kernels for values that stay where they lie: products of two computed matrices, quotients, softmax, and places of
// extreme values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/kernel_table.h"

namespace sift::cpu {

// out[r][c] = scale * sum over k of rows[r][k] columns[k][c], added to what `out` holds if asked for. Columns are in
// the lanes, and the values of rows are broadcast.
struct ProductTileArgs {
  const float* rows;
  std::ptrdiff_t row_stride;  // floats from one row to the next
  std::ptrdiff_t row_step;    // floats from one k to the next
  std::int64_t row_count;
  const float* columns;         // in blocks of 16, all of which can be read
  std::ptrdiff_t column_block;  // floats from one block to the next
  std::ptrdiff_t column_step;   // floats from one k to the next
  std::int64_t column_count;    // up to `tile_columns`
  std::int64_t depth;
  float scale;
  bool adds;
  float* out;  // columns are adjacent
  std::ptrdiff_t out_stride;
};

// The same in each of 16 lanes by itself: values are blocks, aligned to 64 bytes, and distances whole blocks.
struct LaneProductArgs {
  const float* rows;
  std::ptrdiff_t row_stride;
  std::ptrdiff_t row_step;
  std::int64_t row_count;
  const float* columns;
  std::ptrdiff_t column_stride;  // floats from one column to the next
  std::ptrdiff_t column_step;
  std::int64_t column_count;
  std::int64_t depth;
  float scale;
  bool adds;
  float* out;  // columns are adjacent blocks
  std::ptrdiff_t out_stride;
};

// softmax(x), or its logarithm. Of a row, values are adjacent; of lanes, each is a row, and its values are `stride`
// floats apart.
struct SoftmaxArgs {
  const float* x;
  float* out;  // may be x
  std::int64_t count;
  std::ptrdiff_t stride;
  int lanes;  // up to 16
  bool is_log;
};

inline constexpr std::int64_t kExtremeLanes = 64;

// The places of the largest or smallest of `count` values in each lane, which are `stride` floats apart: of equal ones
// the first, or the last. NaN is neither, unless it is the first value.
struct ExtremeLanesArgs {
  const float* x;
  std::int64_t count;  // positive, below 2**31
  std::ptrdiff_t stride;
  int lanes;  // up to kExtremeLanes
  bool is_least;
  bool takes_last;
  std::int32_t* out;  // [kExtremeLanes], all of which may be written
};

// The largest or smallest values themselves, found in the same way, of any number of lanes.
struct ExtremeValuesArgs {
  const float* x;
  std::int64_t count;  // positive
  std::ptrdiff_t stride;
  std::int64_t lanes;
  bool is_least;
  float* out;  // [lanes]
};

enum class UnaryFunction : std::uint8_t { square_root, reciprocal, exponential, softplus, logarithm, sine, cosine };

// Of two arrays. Comparisons make 1 where they hold, and 0. The last two keep a value of the first one where that of
// the second is true, which is not zero, or where it is false, and put a number in the place of the others.
enum class BinaryFunction : std::uint8_t {
  divide,
  maximum,  // NaN where one of them is
  minimum,
  power,
  less,
  less_or_equal,
  greater,
  greater_or_equal,
  equal,
  where_true,
  where_false
};

struct BinaryFunctionArgs {
  BinaryFunction kind;
  const float* a;
  const float* b;
  float fill;
  float* out;  // may be a or b
  std::int64_t count;
};

struct ViewKernels {
  void (*product_tile)(const ProductTileArgs&);
  std::int64_t tile_columns;  // a multiple of 16
  void (*lane_product)(const LaneProductArgs&);
  void (*binary)(const BinaryFunctionArgs&);
  void (*function_of)(UnaryFunction kind, const float* a, float* out, std::int64_t count);  // `out` may be `a`
  void (*softmax_row)(const SoftmaxArgs&);
  void (*softmax_lanes)(const SoftmaxArgs&);
  // The same place as of lanes, of adjacent values.
  std::int64_t (*extreme_of_row)(const float* x, std::int64_t count, bool is_least, bool takes_last);
  void (*extremes_of_lanes)(const ExtremeLanesArgs&);
  // The value itself, of adjacent values.
  float (*extreme_value_of_row)(const float* x, std::int64_t count, bool is_least);
  void (*extreme_values_of_lanes)(const ExtremeValuesArgs&);
  // The first place whose value is larger than `bound`, or NaN, or smaller if asked for that; `count` if there is none.
  std::int64_t (*next_beyond)(const float* x, std::int64_t count, float bound, bool is_less);
};

// Those of the same instruction set as `kernels`.
const ViewKernels& view_kernels_of(const KernelTable& kernels);

}  // namespace sift::cpu
