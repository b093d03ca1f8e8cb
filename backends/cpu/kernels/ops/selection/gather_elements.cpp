#include "ops/selection/gather_elements.h"

#include <algorithm>
#include <stdexcept>

#include "ops/selection/integers.h"
#include "ops/selection/unit_tasks.h"

namespace sift::cpu {
GatherElements::GatherElements(std::int64_t count, bool has_index_for_all)
    : count_(count), has_index_for_all_(has_index_for_all) {
  if (count < 0) throw std::invalid_argument("gather elements: the number of indices is negative");
}

OtherSizes GatherElements::other_sizes(const Shape& in) const {
  const Shape made = output_shape(in);
  return {.second = element_count(has_index_for_all_ ? Shape{made.n, made.c, 1, 1} : made, Layout::integers)};
}

void GatherElements::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others,
                         float* out) const {
  if (others.second == nullptr) throw std::invalid_argument("gather elements: there are no indices");
  const std::int64_t pixels = shape.h * shape.w;
  // The channel that the index at `place` is one of.
  const auto channel_at = [&](std::int64_t place) {
    return load_channel(others.second, place, shape.c, "GatherElements");
  };
  if (pixels == 0) return;
  for_each_task(pool, shape.n * count_, pixels, [&](std::int64_t row, std::int64_t end) {
    while (row < end) {
      const std::int64_t image = row / count_;
      const float* const planes = in + image * shape.c * pixels;
      const std::int64_t last = std::min(end, (image + 1) * count_);
      if (has_index_for_all_) {
        for (; row < last; ++row) std::copy_n(planes + channel_at(row) * pixels, pixels, out + row * pixels);
      } else if (pixels == 1) {
        for (; row < last; ++row) out[row] = planes[channel_at(row)];
      } else {
        for (; row < last; ++row) {
          float* const made = out + row * pixels;
          for (std::int64_t p = 0; p < pixels; ++p) made[p] = planes[channel_at(row * pixels + p) * pixels + p];
        }
      }
    }
  });
}

void CastIntegers::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  for_each_task(pool, element_count(shape, Layout::nchw), 1, [&](std::int64_t place, std::int64_t end) {
    for (; place < end; ++place) out[place] = static_cast<float>(load_integer(in, place));
  });
}

}  // namespace sift::cpu
