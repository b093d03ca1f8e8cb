#include "ops/rotate.h"

#include <algorithm>
#include <stdexcept>

#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// Rows, or blocks of sixteen, of one task: little work is not worth a second thread.
constexpr std::int64_t kFloatsOfTask = std::int64_t{1} << 14;

// One head; channels are `Step` floats apart and `Step` tokens lie next to each other.
template <std::int64_t Step>
void rotate_head(const RotateOptions& o, const float* x, const float* cosines, const float* sines, float* out) {
  const std::int64_t pairs = o.rotated / 2;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const std::int64_t first = o.is_interleaved ? 2 * pair : pair;
    const std::int64_t second = o.is_interleaved ? first + 1 : pair + pairs;
    const std::int64_t of_first = o.has_angle_each ? first : pair;
    const std::int64_t of_second = o.has_angle_each ? second : pair;
    for (std::int64_t lane = 0; lane < Step; ++lane) {
      const float a = x[first * Step + lane];
      const float b = x[second * Step + lane];
      out[first * Step + lane] = a * cosines[of_first * Step + lane] - b * sines[of_first * Step + lane];
      out[second * Step + lane] = b * cosines[of_second * Step + lane] + a * sines[of_second * Step + lane];
    }
  }
  std::copy(x + o.rotated * Step, x + o.depth * Step, out + o.rotated * Step);
}

}  // namespace

Rotate::Rotate(const RotateOptions& options) : options_(options) {
  const RotateOptions& o = options_;
  if (o.heads < 1 || o.depth < 1 || o.rotated < 2 || o.rotated % 2 != 0 || o.rotated > o.depth) {
    throw std::invalid_argument("rotate: pairs of a head's channels must be turned");
  }
  element_count({1, o.heads, o.depth, 1}, o.layout);
}

Shape Rotate::output_shape(const Shape& in) const {
  if (in.c != options_.heads * options_.depth || in.h != 1 || in.w != 1) {
    throw std::invalid_argument("rotate: the input must be [tokens][heads depth]");
  }
  return in;
}

OtherSizes Rotate::other_sizes(const Shape& in) const {
  const std::int64_t angles = options_.has_angle_each ? options_.rotated : options_.rotated / 2;
  const std::int64_t size = element_count({in.n, angles}, options_.layout);
  return {.second = size, .third = size};
}

void Rotate::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  const Shape made = output_shape(shape);
  if (made.n == 0) return;
  if (others.second == nullptr || others.third == nullptr) {
    throw std::invalid_argument("rotate: cosines or sines are missing");
  }
  const RotateOptions& o = options_;
  const bool in_lanes = o.layout == Layout::nchw_n16;
  const std::int64_t step = in_lanes ? kLanes : 1;
  const std::int64_t count = ceil_div(shape.n, step);
  const std::int64_t channels = o.heads * o.depth * step;
  const std::int64_t angles = (o.has_angle_each ? o.rotated : o.rotated / 2) * step;
  const std::int64_t together = std::max<std::int64_t>(1, kFloatsOfTask / channels);
  pool.parallel_for(ceil_div(count, together), [&](std::int64_t task) {
    for (std::int64_t i = task * together; i < std::min(count, (task + 1) * together); ++i) {
      for (std::int64_t head = 0; head < o.heads; ++head) {
        const std::int64_t at = i * channels + head * o.depth * step;
        const float* const cosines = others.second + i * angles;
        const float* const sines = others.third + i * angles;
        if (in_lanes) {
          rotate_head<kLanes>(o, in + at, cosines, sines, out + at);
        } else {
          rotate_head<1>(o, in + at, cosines, sines, out + at);
        }
      }
    }
  });
}

}  // namespace sift::cpu
