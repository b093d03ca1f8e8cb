#include "conv/kernel_parts.h"

#include <algorithm>

namespace sift::cpu {

std::vector<KernelPart> kernel_parts(const ConvGeometry& geometry, Layout layout, DType dtype) {
  std::int64_t rows = geometry.kernel_h;
  std::int64_t cols = geometry.kernel_w;
  const auto fits = [&] { return panel_fits(geometry_of_part(geometry, {0, rows, 0, cols}), layout, dtype); };
  // Whole rows as long as one fits: their taps share more of the panel.
  while (!fits() && rows > 1) rows = (rows + 1) / 2;
  while (!fits() && cols > 1) cols = (cols + 1) / 2;
  std::vector<KernelPart> parts;
  for (std::int64_t y = 0; y < geometry.kernel_h; y += rows) {
    for (std::int64_t x = 0; x < geometry.kernel_w; x += cols) {
      parts.push_back({y, std::min(y + rows, geometry.kernel_h), x, std::min(x + cols, geometry.kernel_w)});
    }
  }
  return parts;
}

ConvGeometry geometry_of_part(const ConvGeometry& geometry, const KernelPart& part) {
  ConvGeometry g = geometry;
  g.kernel_h = part.y_end - part.y_begin;
  g.kernel_w = part.x_end - part.x_begin;
  g.pad_top -= part.y_begin * g.dilation_h;
  g.pad_left -= part.x_begin * g.dilation_w;
  g.pad_bottom -= (geometry.kernel_h - part.y_end) * g.dilation_h;
  g.pad_right -= (geometry.kernel_w - part.x_end) * g.dilation_w;
  return g;
}

SparseWeights weights_of_part(const SparseWeights& weights, const ConvGeometry& geometry, const KernelPart& part) {
  const std::int64_t taps = geometry.kernel_h * geometry.kernel_w;
  const std::int64_t width = part.x_end - part.x_begin;
  const std::int64_t part_taps = (part.y_end - part.y_begin) * width;
  SparseWeights::Builder builder(weights.rows(), weights.columns() / taps * part_taps, 0);
  for (std::int64_t row = 0; row < weights.rows(); ++row) {
    const auto columns = weights.row_columns(row);
    const auto values = weights.row_values(row);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::int64_t channel = columns[i] / taps;
      const std::int64_t y = columns[i] % taps / geometry.kernel_w;
      const std::int64_t x = columns[i] % geometry.kernel_w;
      if (y < part.y_begin || y >= part.y_end || x < part.x_begin || x >= part.x_end) continue;
      const std::int64_t tap = (y - part.y_begin) * width + x - part.x_begin;
      builder.add(static_cast<std::uint32_t>(channel * part_taps + tap), values[i]);
    }
    builder.end_row();
  }
  return builder.take();
}

}  // namespace sift::cpu
