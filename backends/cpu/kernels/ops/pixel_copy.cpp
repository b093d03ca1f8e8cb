#include "ops/pixel_copy.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

std::int64_t end_of(const std::vector<std::int64_t>& indices) {
  std::int64_t end = 0;
  for (const std::int64_t index : indices) {
    if (index < -1 || index >= kMostElements) throw std::invalid_argument("pixel copy: there is no such pixel");
    end = std::max(end, index + 1);
  }
  return end;
}

}  // namespace

PixelCopy::PixelCopy(std::vector<std::int64_t> rows, std::vector<std::int64_t> columns, float fill, Layout layout)
    : rows_(std::move(rows)),
      columns_(static_cast<std::int64_t>(columns.size())),
      end_row_(end_of(rows_)),
      end_column_(end_of(columns)),
      fill_(fill),
      layout_(layout) {
  for (std::int64_t x = 0; x < columns_; ++x) {
    const std::int64_t from = columns[static_cast<std::size_t>(x)];
    const bool follows =
        !runs_.empty() &&
        (from < 0 ? runs_.back().from < 0 : runs_.back().from >= 0 && runs_.back().from + runs_.back().count == from);
    if (follows) {
      ++runs_.back().count;
    } else {
      runs_.push_back({.to = x, .from = from, .count = 1});
    }
  }
  doubles_ = columns_ == 2 * end_column_;
  for (std::int64_t x = 0; x < columns_; ++x) doubles_ &= columns[static_cast<std::size_t>(x)] == x / 2;
}

Shape PixelCopy::output_shape(const Shape& in) const {
  if (in.h < end_row_ || in.w < end_column_) {
    throw std::invalid_argument("pixel copy: the input does not have these pixels");
  }
  return {in.n, in.c, static_cast<std::int64_t>(rows_.size()), columns_};
}

void PixelCopy::copy_row(const float* __restrict from, float* __restrict to) const {
  const std::int64_t lanes = layout_ == Layout::nchw ? 1 : kLanes;
  if (doubles_ && lanes == 1) {
    // Compilers make vectors of it.
    for (std::int64_t x = 0; x < end_column_; ++x) to[2 * x] = to[2 * x + 1] = from[x];
    return;
  }
  for (const Run& run : runs_) {
    float* const at = to + run.to * lanes;
    if (run.from < 0) {
      std::fill_n(at, run.count * lanes, fill_);
    } else if (run.count > 1) {
      std::memcpy(at, from + run.from * lanes, static_cast<std::size_t>(run.count * lanes) * sizeof *at);
    } else if (lanes == 1) {
      *at = from[run.from];
    } else {
      std::memcpy(at, from + run.from * kLanes, kLanes * sizeof *at);
    }
  }
}

void PixelCopy::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const Shape made = output_shape(shape);
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t lanes = nchw ? 1 : kLanes;
  const std::int64_t planes = (nchw ? shape.n : ceil_div(shape.n, kLanes)) * shape.c;
  const std::int64_t row = made.w * lanes;
  if (made.h == 0 || row == 0) return;
  constexpr std::int64_t kPiece = 16384;  // floats: enough to be worth a thread, little enough to balance
  const std::int64_t together = std::max<std::int64_t>(kPiece / (made.h * row), 1);
  pool.parallel_for(ceil_div(planes, together), [&](std::int64_t task) {
    const std::int64_t end = std::min(planes, (task + 1) * together);
    for (std::int64_t plane = task * together; plane < end; ++plane) {
      const float* const from = in + plane * shape.h * shape.w * lanes;
      float* to = out + plane * made.h * row;
      for (std::size_t y = 0; y < rows_.size(); ++y, to += row) {
        if (rows_[y] < 0) {
          std::fill_n(to, row, fill_);
        } else if (y > 0 && rows_[y] == rows_[y - 1]) {
          std::memcpy(to, to - row, static_cast<std::size_t>(row) * sizeof *to);
        } else {
          copy_row(from + rows_[y] * shape.w * lanes, to);
        }
      }
    }
  });
}

}  // namespace sift::cpu
