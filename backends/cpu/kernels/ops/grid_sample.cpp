#include "ops/grid_sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// Positions that are worked on at a time: all channels use what is found of them.
constexpr std::int64_t kPositions = 128;
// In the place of a pixel that is not there.
constexpr std::int64_t kOutside = -1;

// A coordinate of an axis of `size` pixels, counted from the centre of the first one.
float coordinate(float position, std::int64_t size, bool aligns_corners) {
  const auto length = static_cast<float>(size);
  return aligns_corners ? (position + 1) / 2 * (length - 1) : ((position + 1) * length - 1) / 2;
}

// The index of a pixel, kOutside for one that is not there. NaN is none.
std::int64_t pixel_at(float place, std::int64_t size, bool clamps) {
  const auto last = static_cast<float>(size - 1);
  if (clamps) return static_cast<std::int64_t>(place > 0 ? std::min(place, last) : 0.0F);
  return place >= 0 && place <= last ? static_cast<std::int64_t>(place) : kOutside;
}

// Both pixels of an axis around a place, and their shares.
struct Neighbours {
  std::array<std::int64_t, 2> pixels;
  std::array<float, 2> shares;
};

Neighbours neighbours(float place, std::int64_t size, const GridSampleOptions& options) {
  if (options.is_nearest) return {{pixel_at(std::nearbyint(place), size, options.clamps), kOutside}, {1, 0}};
  const auto last = static_cast<float>(size - 1);
  const float low = options.aligns_corners ? 0.0F : -0.5F;
  if (options.clamps && (place < low || place > last - low)) place = std::clamp(place, 0.0F, last);
  const float first = std::floor(place);
  const float second = first + 1;
  return {{pixel_at(first, size, options.clamps), pixel_at(second, size, options.clamps)},
          {second - place, place - first}};
}

struct Positions {
  std::array<std::array<std::int64_t, 4>, kPositions> pixels;
  std::array<std::array<float, 4>, kPositions> shares;
};

void find(const float* grid, std::int64_t count, const Shape& in, const GridSampleOptions& options, Positions& found) {
  for (std::int64_t i = 0; i < count; ++i) {
    const Neighbours x = neighbours(coordinate(grid[2 * i], in.w, options.aligns_corners), in.w, options);
    const Neighbours y = neighbours(coordinate(grid[2 * i + 1], in.h, options.aligns_corners), in.h, options);
    for (std::size_t corner = 0; corner < 4; ++corner) {
      const std::int64_t row = y.pixels[corner / 2];
      const std::int64_t column = x.pixels[corner % 2];
      const auto at = static_cast<std::size_t>(i);
      found.pixels[at][corner] = row == kOutside || column == kOutside ? kOutside : row * in.w + column;
      found.shares[at][corner] = y.shares[corner / 2] * x.shares[corner % 2];
    }
  }
}

void sample(const float* plane, const Positions& found, std::int64_t count, bool is_nearest, float* out) {
  const auto value = [plane](std::int64_t pixel) { return pixel == kOutside ? 0.0F : plane[pixel]; };
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const std::array<std::int64_t, 4>& pixels = found.pixels[i];
    const std::array<float, 4>& shares = found.shares[i];
    if (is_nearest) {
      out[i] = value(pixels[0]);
    } else {
      out[i] = shares[0] * value(pixels[0]) + shares[1] * value(pixels[1]) + shares[2] * value(pixels[2]) +
               shares[3] * value(pixels[3]);
    }
  }
}

}  // namespace

GridSample::GridSample(GridSampleOptions options) : options_(options) {
  if (options.height < 0 || options.width < 0) throw std::invalid_argument("grid sample: a size is negative");
}

Shape GridSample::output_shape(const Shape& in) const {
  if (in.h < 1 || in.w < 1) throw std::invalid_argument("grid sample: an image has no pixels");
  return {in.n, in.c, options_.height, options_.width};
}

OtherSizes GridSample::other_sizes(const Shape& in) const {
  return {.second = element_count({in.n, options_.height, options_.width, 2}, Layout::nchw)};
}

void GridSample::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  const Shape made = output_shape(shape);
  if (others.second == nullptr) throw std::invalid_argument("grid sample: there are no positions");
  const std::int64_t positions = made.h * made.w;
  const std::int64_t pieces = ceil_div(positions, kPositions);
  pool.parallel_for(shape.n * pieces, [&](std::int64_t task) {
    const std::int64_t image = task / pieces;
    const std::int64_t begin = task % pieces * kPositions;
    const std::int64_t count = std::min(kPositions, positions - begin);
    Positions found;
    find(others.second + 2 * (image * positions + begin), count, shape, options_, found);
    for (std::int64_t channel = image * shape.c; channel < (image + 1) * shape.c; ++channel) {
      sample(in + channel * shape.h * shape.w, found, count, options_.is_nearest, out + channel * positions + begin);
    }
  });
}

}  // namespace sift::cpu
