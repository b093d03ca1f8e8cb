#include "conv/input_ahead.h"

#include <algorithm>

#include "base/cache.h"
#include "base/microarchitecture.h"

namespace sift::cpu {
namespace {

constexpr std::int64_t kLineBytes = kLanes * static_cast<std::int64_t>(sizeof(float));
// Lines of a run: of 24 and more, a core reads as many bytes as in order.
constexpr std::int64_t kRunLines = 32;

// Pixels of an image along one axis: every step-th from the first one on.
struct Range {
  std::int64_t first;
  std::int64_t count;
  std::int64_t step;
};

// What `outputs` outputs from `begin` on read of `size` pixels.
Range range_read(std::int64_t begin, std::int64_t outputs, std::int64_t stride, std::int64_t pad, std::int64_t kernel,
                 std::int64_t dilation, std::int64_t size) {
  const std::int64_t first = std::max<std::int64_t>(begin * stride - pad, 0);
  const std::int64_t end = std::min((begin + outputs - 1) * stride - pad + (kernel - 1) * dilation + 1, size);
  const std::int64_t step = kernel == 1 ? stride : 1;
  return {first, ceil_div(std::max<std::int64_t>(end - first, 0), step), step};
}

// What a group of tiles reads is at most a quarter of the second-level cache.
std::int64_t tiles_of_group(const ConvJob& job) {
  const ConvGeometry& g = job.geometry;
  const std::int64_t rows = (job.tile.rows - 1) * g.stride_h + (g.kernel_h - 1) * g.dilation_h + 1;
  const std::int64_t room = level2_cache_bytes() / 4 / (job.channels * rows * kLineBytes);
  return std::max<std::int64_t>(std::min(kRunLines, room) / (job.tile.cols * g.stride_w), 1);
}

}  // namespace

bool prefetches_in_runs(const TilingProblem& problem, const Tiling& tiling, const ConvTensors& tensors) {
  // Not measured on others. Code prefetches nothing there, and gains nothing from runs.
  const bool is_listed = tiling.form != WeightForm::code && tiling.form != WeightForm::dense;
  if (problem.microarchitecture != Microarchitecture::intel || !is_listed) return false;
  if (tensors.layout != Layout::nchw_n16 || tiling.tile.images > 1 || problem.geometry.groups > 1) return false;
  const std::int64_t bytes = tensors.in_channels * tensors.in_h * tensors.in_w * kLineBytes;
  return bytes > level2_cache_bytes() / 2;
}

std::optional<Prefetcher> input_ahead(const ConvJob& job, const ConvTile& place, std::int64_t slice,
                                      std::int64_t slices, const float* in, std::vector<std::ptrdiff_t>& places) {
  const ConvTensors& t = job.tensors;
  const ConvGeometry& g = job.geometry;
  const TileShape& tile = job.tile;
  const std::int64_t in_group = tiles_of_group(job);
  if (in_group == 1) return std::nullopt;
  const std::int64_t in_row = ceil_div(t.out_w, tile.cols);
  const std::int64_t number = place.col / tile.cols;
  const std::int64_t group = number / in_group * in_group;
  const std::int64_t own = std::min(in_group, in_row - group);
  std::int64_t next = group + own;
  std::int64_t row = place.row;
  if (next == in_row) {
    next = 0;
    row += tile.rows;
    if (row >= t.out_h) return std::nullopt;
  }
  const std::int64_t first = next * tile.cols;
  const std::int64_t outputs = std::min(in_group * tile.cols, t.out_w - first);
  const Range y = range_read(row, tile.rows, g.stride_h, g.pad_top, g.kernel_h, g.dilation_h, t.in_h);
  const Range x = range_read(first, outputs, g.stride_w, g.pad_left, g.kernel_w, g.dilation_w, t.in_w);
  places.clear();
  for (std::int64_t i = 0; i < y.count; ++i) {
    for (std::int64_t j = 0; j < x.count; ++j) {
      places.push_back(((y.first + i * y.step) * t.in_w + x.first + j * x.step) * kLanes);
    }
  }
  const std::int64_t part = (number - group) * slices + slice;
  const std::int64_t parts = own * slices;
  const std::int64_t begin = job.channels * part / parts;
  const std::int64_t end = job.channels * (part + 1) / parts;
  const std::int64_t plane = t.in_h * t.in_w * kLanes;
  return Prefetcher(places, in + (place.unit * t.in_channels + begin) * plane, plane, end - begin);
}

}  // namespace sift::cpu
