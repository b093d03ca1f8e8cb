#include "conv/conv_packing.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

#include "conv/row_chunks.h"
#include "weights/pack_lists.h"
#include "weights/unpack_lists.h"

namespace sift::cpu {

ConvPacking::ConvPacking(const SparseWeights& weights, const TilingProblem& problem, const Tiling& tiling,
                         const PanelShape& panel, std::int64_t band_rows, ThreadPool* pool)
    : tiling(tiling), panel(panel), band_rows(band_rows) {
  for (std::int64_t group = 0; group < problem.geometry.groups; ++group) {
    groups.push_back(
        pack_weights(weights, group * problem.rows, problem.rows, problem.geometry, panel, tiling, band_rows, pool));
  }
  band_costs = sift::cpu::band_costs(groups, problem.rows, band_rows);
}

ConvPacking::ConvPacking(const ConvPacking& other, const TilingProblem& problem, const Tiling& tiling,
                         const PanelShape& panel, std::int64_t band_rows, ThreadPool* pool)
    : tiling(tiling), panel(panel), band_rows(band_rows) {
  const std::int64_t columns = problem.channels * problem.geometry.kernel_h * problem.geometry.kernel_w;
  const auto make_source = [&] {
    return std::make_unique<UnpackedRows>(other.groups, problem.rows, columns, problem.geometry, other.panel,
                                          other.tiling, other.band_rows);
  };
  const std::unique_ptr<RowSource> source = make_source();
  for (std::int64_t group = 0; group < problem.geometry.groups; ++group) {
    groups.push_back(pack_lists(*source, make_source, group * problem.rows, problem.rows, problem.geometry, panel,
                                tiling, band_rows, pool));
  }
  band_costs = sift::cpu::band_costs(groups, problem.rows, band_rows);
}

std::int64_t ConvPacking::bytes() const {
  std::int64_t sum = 0;
  for (const std::vector<PackedSlice>& slices : groups) {
    for (const PackedSlice& slice : slices) sum += slice.bytes();
  }
  return sum;
}

SparseWeights ConvPacking::unpack(const TilingProblem& problem) const {
  const std::int64_t columns = problem.channels * problem.geometry.kernel_h * problem.geometry.kernel_w;
  return unpack_weights(groups, problem.rows, columns, problem.geometry, panel, tiling, band_rows);
}

void ConvPacking::keep_places() {
  for (std::vector<PackedSlice>& slices : groups) {
    for (PackedSlice& slice : slices) slice.keep_places();
  }
}

void ConvPacking::refresh(ThreadPool& pool, const ChangingValues& values) {
  if (version_ == values.version()) return;
  constexpr std::size_t kPiece = std::size_t{1} << 15;
  struct Piece {
    PackedSlice* slice;
    std::size_t first;
  };
  std::vector<Piece> pieces;
  for (std::vector<PackedSlice>& slices : groups) {
    for (PackedSlice& slice : slices) {
      for (std::size_t first = 0; first < slice.places.size(); first += kPiece) pieces.push_back({&slice, first});
    }
  }
  pool.parallel_for(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i) {
    const auto [slice, first] = pieces[static_cast<std::size_t>(i)];
    const std::size_t count = std::min(kPiece, slice->places.size() - first);
    values.gather(std::span(slice->places).subspan(first, count), slice->values.data() + first);
  });
  version_ = values.version();
}

}  // namespace sift::cpu
