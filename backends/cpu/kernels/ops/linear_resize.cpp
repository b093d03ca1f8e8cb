#include "ops/linear_resize.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

std::int64_t end_of(const std::vector<Between>& places) {
  std::int64_t end = 0;
  for (const Between& place : places) {
    const auto [low, high] = std::minmax(place.first, place.second);
    if (low < 0 || high >= kMostElements) throw std::invalid_argument("linear resize: there is no such pixel");
    end = std::max(end, high + 1);
  }
  return end;
}

// One plane; `row` is scratch memory of the input's width.
template <int Lanes>
void resize_plane(const float* in, std::int64_t width, const std::vector<Between>& rows,
                  const std::vector<Between>& columns, float* __restrict row, float* __restrict out) {
  for (const Between& y : rows) {
    const float* const above = in + y.first * width * Lanes;
    const float* const below = in + y.second * width * Lanes;
    for (std::int64_t i = 0; i < width * Lanes; ++i) row[i] = above[i] + (below[i] - above[i]) * y.share;
    for (const Between& x : columns) {
      const float* const left = row + x.first * Lanes;
      const float* const right = row + x.second * Lanes;
      for (int lane = 0; lane < Lanes; ++lane) out[lane] = left[lane] + (right[lane] - left[lane]) * x.share;
      out += Lanes;
    }
  }
}

}  // namespace

LinearResize::LinearResize(std::vector<Between> rows, std::vector<Between> columns, Layout layout)
    : rows_(std::move(rows)),
      columns_(std::move(columns)),
      end_row_(end_of(rows_)),
      end_column_(end_of(columns_)),
      layout_(layout) {}

Shape LinearResize::output_shape(const Shape& in) const {
  if (in.h < end_row_ || in.w < end_column_) {
    throw std::invalid_argument("linear resize: the input does not have these pixels");
  }
  return {in.n, in.c, static_cast<std::int64_t>(rows_.size()), static_cast<std::int64_t>(columns_.size())};
}

void LinearResize::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const Shape made = output_shape(shape);
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t lanes = nchw ? 1 : kLanes;
  const std::int64_t planes = (nchw ? shape.n : ceil_div(shape.n, kLanes)) * shape.c;
  pool.parallel_for(planes, [&](std::int64_t plane) {
    std::vector<float> row(static_cast<std::size_t>(shape.w * lanes));
    const float* const from = in + plane * shape.h * shape.w * lanes;
    float* const to = out + plane * made.h * made.w * lanes;
    if (nchw) {
      resize_plane<1>(from, shape.w, rows_, columns_, row.data(), to);
    } else {
      resize_plane<kLanes>(from, shape.w, rows_, columns_, row.data(), to);
    }
  });
}

}  // namespace sift::cpu
