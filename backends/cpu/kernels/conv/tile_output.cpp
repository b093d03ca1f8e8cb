#include "conv/tile_output.h"

#include <cstdint>
#include <limits>

namespace sift::cpu {

void list_scatters(const ConvJob& job, const std::vector<LaneRun>& runs, std::vector<Scatter>& scatters) {
  const ConvTensors& t = job.tensors;
  const TileShape& tile = job.tile;
  const bool nchw = t.layout == Layout::nchw;
  const std::int64_t floats_per_pixel = nchw ? 1 : kLanes;
  // Sums of rows that are code lie row after row, those of others block after block.
  const std::int64_t block_sums = job.packed.front().code.empty() ? tile.lanes() : job.band_rows * kLanes;
  scatters.clear();
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    for (const LaneRun& run : runs) {
      if (run.outputs <= 0) continue;
      const std::int64_t block = row * tile.cols * tile.images + run.block;
      for (std::int64_t lane_row = 0; lane_row < tile.lanes_h; ++lane_row) {
        const std::int64_t y = run.corner.y + row * tile.lanes_h + lane_row;
        if (y >= t.out_h) continue;
        const std::int64_t target =
            (run.corner.unit * t.out_channels * t.out_plane + y * t.out_row + run.corner.x * t.out_step) *
            floats_per_pixel;
        scatters.push_back({target, static_cast<std::uint32_t>(block * block_sums + lane_row * tile.lanes_w + run.lane),
                            static_cast<std::uint32_t>(nchw ? run.outputs : kLanes)});
      }
    }
  }
}

std::optional<DirectOutput> direct_output(const ConvJob& job, const std::vector<Scatter>& scatters, const float* out) {
  const TileShape& tile = job.tile;
  const bool bounded = job.activation.kind == ActivationKind::clip;
  if (!bounded && job.activation.kind != ActivationKind::none) return std::nullopt;
  if (tile.rotates() || static_cast<std::int64_t>(scatters.size()) != tile.blocks()) return std::nullopt;
  const std::size_t cols = scatters.size() / static_cast<std::size_t>(kernel_rows(tile, job.panel.pitch));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  DirectOutput direct{};
  direct.row_stride = job.tensors.out_plane * (job.tensors.layout == Layout::nchw ? 1 : kLanes);
  direct.step = cols > 1 ? scatters[1].target - scatters[0].target : 0;
  direct.pitch = scatters.size() > cols ? scatters[cols].target - scatters[0].target : 0;
  direct.low = bounded ? job.activation.a : -kInfinity;
  direct.high = bounded ? job.activation.b : kInfinity;
  for (std::size_t i = 0; i < scatters.size(); ++i) {
    const auto row = static_cast<std::ptrdiff_t>(i / cols);
    const auto col = static_cast<std::ptrdiff_t>(i % cols);
    const std::ptrdiff_t even = scatters[0].target + row * direct.pitch + col * direct.step;
    if (scatters[i].lanes != kLanes || scatters[i].target != even) return std::nullopt;
  }
  const bool aligned = (direct.row_stride | direct.step | direct.pitch | scatters[0].target) % kLanes == 0 &&
                       reinterpret_cast<std::uintptr_t>(out) % (kLanes * sizeof(float)) == 0;
  direct.non_temporal = job.non_temporal && aligned;
  return direct;
}

}  // namespace sift::cpu
