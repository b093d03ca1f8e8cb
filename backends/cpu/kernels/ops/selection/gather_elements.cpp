#include "ops/selection/gather_elements.h"

#include <stdexcept>
#include <string>

#include "ops/selection/integers.h"
#include "ops/selection/unit_tasks.h"

namespace sift::cpu {
GatherElements::GatherElements(std::int64_t count) : count_(count) {
  if (count < 0) throw std::invalid_argument("gather elements: the number of indices is negative");
}

void GatherElements::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others,
                         float* out) const {
  if (others.second == nullptr) throw std::invalid_argument("gather elements: there are no indices");
  const std::int64_t pixels = shape.h * shape.w;
  for_each_task(pool, shape.n * count_ * pixels, 1, [&](std::int64_t place, std::int64_t end) {
    for (; place < end; ++place) {
      const std::int64_t stored = load_integer(others.second, place);
      const std::int64_t index = stored < 0 ? stored + shape.c : stored;
      if (index < 0 || index >= shape.c) {
        throw std::invalid_argument("GatherElements: index " + std::to_string(stored) + " of an axis of " +
                                    std::to_string(shape.c) + " values");
      }
      const std::int64_t image = place / (count_ * pixels);
      out[place] = in[(image * shape.c + index) * pixels + place % pixels];
    }
  });
}

void CastIntegers::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  for_each_task(pool, element_count(shape, Layout::nchw), 1, [&](std::int64_t place, std::int64_t end) {
    for (; place < end; ++place) out[place] = static_cast<float>(load_integer(in, place));
  });
}

}  // namespace sift::cpu
