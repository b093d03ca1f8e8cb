// Some pixels of a pointwise convolution, by one thread.
#include <stdexcept>

#include "base/cache.h"
#include "conv/conv.h"
#include "conv/conv_plan.h"
#include "conv/conv_tile.h"
#include "conv/row_chunks.h"

namespace sift::cpu {

bool Conv::runs_pixels() const {
  return options_.layout == Layout::nchw && options_.geometry.is_pointwise() && options_.geometry.groups == 1 &&
         options_.dtype == DType::float32 && !options_.values && parts_.empty();
}

void Conv::run_pixels(const PixelCall& call) const {
  if (call.first >= call.end) return;
  if (!runs_pixels() || call.first % kLanes != 0) {
    throw std::invalid_argument("conv: only whole blocks of pixels of a pointwise convolution in planes run alone");
  }
  const auto plan = plan_for({1, columns_, 1, call.most}, 1, nullptr);
  const ConvPacking& packing = *plan->packing;
  const TileShape& tile = plan->tiling.tile;
  // The image as one row, from whose beginning on tiles are counted. It ends with the last pixel of the call, but more
  // of it can be read.
  ConvTensors tensors = plan->problem.tensors;
  tensors.in_w = call.in_plane;
  tensors.out_w = tensors.out_row = call.end;
  tensors.out_plane = call.out_plane;
  const std::int64_t width = tile.outputs_w();
  const std::int64_t first_column = call.first / width;
  const std::int64_t tiles = ceil_div(call.end - call.first, tile.cols * width);
  const std::vector<std::int64_t> chunks =
      balance_rows(packing.band_costs, rows_, packing.band_rows, plan->tiling.row_chunks);
  const ConvJob job = job_of(*plan, tensors, 0);
  float* const out = call.out - call.first;
  const float* const residual = call.residual == nullptr ? nullptr : call.residual - call.first;
  const auto tile_at = [&](std::int64_t number) { return ConvTile{0, first_column + number * tile.cols, 0}; };
  for (std::size_t chunk = 0; chunk + 1 < chunks.size(); ++chunk) {
    for (std::int64_t number = 0; number < tiles; ++number) {
      run_tile(job, tile_at(number), tile_at(number + 1), chunks[chunk], chunks[chunk + 1], call.in, residual, out);
    }
  }
}

}  // namespace sift::cpu
