#include "train/weight_gradient/gradient_copies.h"

namespace sift::cpu {
namespace {

// Pixels of adjacent channels of one group of 16 images.
struct PixelGrid {
  std::int64_t y;  // of the first pixel; what lies outside of the image is zero
  std::int64_t x;
  std::int64_t step_y;
  std::int64_t step_x;
  std::int64_t h;
  std::int64_t w;
  std::int64_t pitch;  // blocks from one line to the next
};

void add_zeros(std::vector<BlockCopy>& copies, float* to, std::int64_t count) {
  if (count > 0) copies.push_back({.from = nullptr, .to = to, .count = count, .from_step = 0, .to_step = kLanes});
}

void list_planes(const PixelGrid& grid, const float* image, const Shape& in, std::int64_t channels, float* to,
                 std::int64_t plane_floats, std::vector<BlockCopy>& copies) {
  // Columns of the planes that lie in the image.
  const std::int64_t begin =
      std::clamp<std::int64_t>(ceil_div(std::max<std::int64_t>(-grid.x, 0), grid.step_x), 0, grid.w);
  const std::int64_t end =
      std::clamp<std::int64_t>(ceil_div(std::max<std::int64_t>(in.w - grid.x, 0), grid.step_x), begin, grid.w);
  const std::int64_t channel_floats = in.h * in.w * kLanes;
  if (grid.h * grid.w == 1 && grid.y >= 0 && grid.y < in.h && begin < end) {
    copies.push_back({.from = image + (grid.y * in.w + grid.x) * kLanes,
                      .to = to,
                      .count = channels,
                      .from_step = channel_floats,
                      .to_step = plane_floats});
    return;
  }
  for (std::int64_t channel = 0; channel < channels; ++channel, image += channel_floats, to += plane_floats) {
    float* line = to;
    for (std::int64_t row = 0; row < grid.h; ++row, line += grid.pitch * kLanes) {
      const std::int64_t y = grid.y + row * grid.step_y;
      const bool is_inside = y >= 0 && y < in.h && begin < end;
      add_zeros(copies, line, is_inside ? begin : grid.w);
      if (!is_inside) continue;
      copies.push_back({.from = image + (y * in.w + grid.x + begin * grid.step_x) * kLanes,
                        .to = line + begin * kLanes,
                        .count = end - begin,
                        .from_step = grid.step_x * kLanes,
                        .to_step = kLanes});
      add_zeros(copies, line + end * kLanes, grid.w - end);
    }
  }
}

}  // namespace

std::vector<TilePlace> places_of_tiles(const GradientTile& tile, const Shape& out) {
  const std::int64_t groups = ceil_div(out.n, kLanes);
  std::vector<TilePlace> places;
  for (std::int64_t group = 0; group < groups; group += tile.groups) {
    for (std::int64_t y = 0; y < out.h; y += tile.h) {
      for (std::int64_t x = 0; x < out.w; x += tile.w) {
        places.push_back({group, y, x, std::min(tile.groups, groups - group), std::min(tile.h, out.h - y),
                          std::min(tile.w, out.w - x)});
      }
    }
  }
  return places;
}

void list_lines(const GradientTile& tile, const TilePlace& place, const float* panel, const float* gradients,
                std::vector<GradientLine>& lines) {
  lines.clear();
  for (std::int64_t line = 0; line < place.groups * place.h; ++line) {
    const std::int64_t at = (line / place.h * tile.plane_h + line % place.h) * tile.plane_w;
    const GradientLine next{panel + at * kLanes, gradients + line * place.w * kLanes,
                            static_cast<std::uint64_t>(place.w)};
    if (!lines.empty() && lines.back().x + lines.back().count * kLanes == next.x) {
      lines.back().count += next.count;
    } else {
      lines.push_back(next);
    }
  }
}

void list_operands(const ConvGeometry& geometry, const GradientTile& tile, const TilePlace& place,
                   std::span<const GradientSlice::Planes> planes, const Channels& x, float* panel,
                   std::vector<BlockCopy>& copies) {
  copies.clear();
  const Shape& in = x.shape;
  for (std::int64_t group = 0; group < place.groups; ++group, panel += tile.plane_h * tile.plane_w * kLanes) {
    const float* const image = x.data + ((place.group + group) * in.c + x.first) * in.h * in.w * kLanes;
    float* to = panel;
    for (const GradientSlice::Planes& of : planes) {
      list_planes({.y = place.y * geometry.stride_h - geometry.pad_top + of.y,
                   .x = place.x * geometry.stride_w - geometry.pad_left + of.x,
                   .step_y = geometry.stride_h,
                   .step_x = geometry.stride_w,
                   .h = place.h + tile.plane_h - tile.h,
                   .w = place.w + tile.plane_w - tile.w,
                   .pitch = tile.plane_w},
                  image + of.channel * in.h * in.w * kLanes, in, of.count, to, tile.plane_floats(), copies);
      to += of.count * tile.plane_floats();
    }
  }
}

// Rows of an image lie pages apart, in the same sets of the cache: copied, they do not. Line after line: of tokens,
// adjacent rows are adjacent in memory.
void list_gradients(const GradientTile& tile, const TilePlace& place, std::int64_t rows, const Channels& dy, float* to,
                    std::vector<BlockCopy>& copies) {
  copies.clear();
  const Shape& out = dy.shape;
  const std::int64_t plane = out.h * out.w;
  for (std::int64_t line = 0; line < place.groups * place.h; ++line) {
    const std::int64_t channel = (place.group + line / place.h) * out.c + dy.first;
    const float* from = dy.data + (channel * plane + (place.y + line % place.h) * out.w + place.x) * kLanes;
    float* line_to = to + line * place.w * kLanes;
    const std::int64_t pitch = tile.positions() * kLanes;
    if (place.w == 1) {
      copies.push_back({.from = from, .to = line_to, .count = rows, .from_step = plane * kLanes, .to_step = pitch});
      continue;
    }
    for (std::int64_t row = 0; row < rows; ++row, from += plane * kLanes, line_to += pitch) {
      copies.push_back({.from = from, .to = line_to, .count = place.w, .from_step = kLanes, .to_step = kLanes});
    }
  }
}

}  // namespace sift::cpu
