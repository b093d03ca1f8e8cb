// Weights in the order in which a micro-kernel reads them: slice after slice of input channels, within a slice row
// after row, each weight with the offset of its operand in the panel.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/page_allocator.h"
#include "base/thread_pool.h"
#include "jit/code_memory.h"
#include "simd/kernel_table.h"
#include "weights/panel.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

struct PackedSlice {
  std::int64_t first_channel = 0;
  std::int64_t channels = 0;
  std::vector<std::uint32_t> starts;
  std::vector<std::uint32_t> value_starts;
  std::vector<std::uint16_t, PageAllocator<std::uint16_t>> offsets;
  std::vector<float, PageAllocator<float>> values;
  // Of values that change: where each comes from.
  std::vector<std::uint32_t, PageAllocator<std::uint32_t>> places;
  std::vector<std::uint16_t> order;          // of sell, see RowsArgs
  std::shared_ptr<const CodeMemory> memory;  // of rows that are code
  std::vector<CodeUnit> code;                // see RowsArgs
  std::uint32_t units = 0;
  std::int64_t code_bytes = 0;
  std::uint32_t columns = 0;

  std::int64_t bytes() const;

  // Takes the values, which are places (ChangingValues), for `places`.
  void keep_places();

  // The i-th value as it was packed: of values that change, the place.
  float packed_value(std::size_t i) const { return places.empty() ? values[i] : std::bit_cast<float>(places[i]); }

  // The fields of `args` that say which weights.
  void describe(RowsArgs& args) const;
};

// Rows are handled four at a time at most: slices have rows of zeros at the end up to a multiple of 4.
std::int64_t padded_rows(std::int64_t rows);

// Rows that are not divided among threads: a band (sigma) of sell, a group of code, else four.
std::int64_t band_rows(std::int64_t rows, WeightForm form, int threads);

// Columns of a slice of this many channels -> bytes into the panel.
std::vector<std::uint16_t> column_offsets(const ConvGeometry& geometry, const PanelShape& panel, std::int64_t channels);

// The slices of rows [first_row, first_row + rows), one group of a convolution, written on the threads of `pool`, if
// there is one. Code is one slice of all channels, and so are dense weights: slices of any tile are a part of it.
std::vector<PackedSlice> pack_weights(const SparseWeights& weights, std::int64_t first_row, std::int64_t rows,
                                      const ConvGeometry& geometry, const PanelShape& panel, const Tiling& tiling,
                                      std::int64_t band_rows, ThreadPool* pool = nullptr);

// What pack_weights was made from, out of all groups' slices. The dense form does not record which weights are active:
// its source lists all.
SparseWeights unpack_weights(const std::vector<std::vector<PackedSlice>>& groups, std::int64_t rows_per_group,
                             std::int64_t columns, const ConvGeometry& geometry, const PanelShape& panel,
                             const Tiling& tiling, std::int64_t band_rows);

}  // namespace sift::cpu
