// Weights as lists of each row's entries in a slice: csr and sell.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/conv_geometry.h"
#include "base/thread_pool.h"
#include "weights/packed_weights.h"
#include "weights/row_source.h"

namespace sift::cpu {

constexpr bool has_lists(WeightForm form) { return form == WeightForm::csr || form == WeightForm::sell; }

// As pack_weights, for a tiling that has lists. The calling thread reads rows from `source`, and each other one from a
// source that `make_source` makes.
std::vector<PackedSlice> pack_lists(RowSource& source, const std::function<std::unique_ptr<RowSource>()>& make_source,
                                    std::int64_t first_row, std::int64_t rows, const ConvGeometry& geometry,
                                    const PanelShape& panel, const Tiling& tiling, std::int64_t band_rows,
                                    ThreadPool* pool);

}  // namespace sift::cpu
