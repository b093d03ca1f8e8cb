#include "ops/selection/scatter_elements.h"

#include <algorithm>
#include <stdexcept>

#include "base/thread_pool.h"
#include "ops/selection/integers.h"

namespace sift::cpu {
namespace {

// What is worth a thread of its own, and pixels whose lines no two threads share.
constexpr std::int64_t kTaskFloats = 4096;
constexpr std::int64_t kLine = 16;

// A part of the result, which one thread makes: no other reads or writes it, so that values come to a place in their
// order whatever the number of threads.
struct Part {
  std::int64_t image;
  std::int64_t channel;
  std::int64_t channel_end;
  std::int64_t pixel;
  std::int64_t pixel_end;
};

// How the result is divided: into images, if need be into ranges of pixels, which have as much to do as each other, or
// of channels, where a thread passes over the indices of the others.
class Parts {
 public:
  Parts(const Shape& made, std::int64_t values, int threads) : made_(made), pixels_(made.h * made.w) {
    const std::int64_t wanted = std::min<std::int64_t>(threads, std::max(values, made.c * pixels_) / kTaskFloats);
    if (made.n >= wanted) return;
    const std::int64_t most = ceil_div(wanted, made.n);
    pixel_parts_ = std::clamp<std::int64_t>(pixels_ / (4 * kLine), 1, most);
    channel_parts_ = std::clamp<std::int64_t>(made.c, 1, most / pixel_parts_);
  }

  std::int64_t count() const { return made_.n * pixel_parts_ * channel_parts_; }

  Part at(std::int64_t number) const {
    const std::int64_t columns = ceil_div(ceil_div(pixels_, pixel_parts_), kLine) * kLine;
    const std::int64_t channels = ceil_div(made_.c, channel_parts_);
    const std::int64_t pixel = std::min(number % pixel_parts_ * columns, pixels_);
    const std::int64_t channel = std::min(number / pixel_parts_ % channel_parts_ * channels, made_.c);
    return {number / (pixel_parts_ * channel_parts_), channel, std::min(channel + channels, made_.c), pixel,
            std::min(pixel + columns, pixels_)};
  }

 private:
  const Shape& made_;
  const std::int64_t pixels_;
  std::int64_t pixel_parts_ = 1;
  std::int64_t channel_parts_ = 1;
};

template <Scattering Kind>
float taken(float held, float value) {
  switch (Kind) {
    case Scattering::replaced: return value;
    case Scattering::sum: return held + value;
    case Scattering::product: return held * value;
    case Scattering::maximum: return held < value ? value : held;
    case Scattering::minimum: return value < held ? value : held;
  }
}

// The first operand and the indices of all values.
template <typename ChannelAt>
struct Source {
  const Shape& shape;
  bool has_index_for_all;
  const ChannelAt& channel_at;
  const float* values;
};

// What is at a place becomes take(it, value) for each value of a part.
template <typename ChannelAt, typename Take>
void for_each_value(const Part& part, const Source<ChannelAt>& from, float* image, const Take& take) {
  const std::int64_t pixels = from.shape.h * from.shape.w;
  for (std::int64_t i = 0; i < from.shape.c; ++i) {
    const std::int64_t row = part.image * from.shape.c + i;
    const float* const values = from.values + row * pixels;
    if (from.has_index_for_all) {
      const std::int64_t channel = from.channel_at(row);
      if (channel < part.channel || channel >= part.channel_end) continue;
      float* const held = image + channel * pixels;
      for (std::int64_t p = part.pixel; p < part.pixel_end; ++p) held[p] = take(held[p], values[p]);
    } else {
      for (std::int64_t p = part.pixel; p < part.pixel_end; ++p) {
        const std::int64_t channel = from.channel_at(row * pixels + p);
        if (channel < part.channel || channel >= part.channel_end) continue;
        float& held = image[channel * pixels + p];
        held = take(held, values[p]);
      }
    }
  }
}

template <Scattering Kind, typename ChannelAt>
void scatter(const Part& part, const Source<ChannelAt>& from, float* image) {
  for_each_value(part, from, image, [](float held, float value) { return taken<Kind>(held, value); });
}

}  // namespace

ScatterElements::ScatterElements(std::int64_t count, const Scattered& scattered)
    : count_(count), scattered_(scattered) {
  if (count < 0) throw std::invalid_argument("scatter elements: the number of channels is negative");
}

OtherSizes ScatterElements::other_sizes(const Shape& in) const {
  const Shape indices = scattered_.has_index_for_all ? Shape{in.n, in.c, 1, 1} : in;
  return {.second = element_count(indices, Layout::integers),
          .third = scattered_.fill ? OtherSizes::kNotTaken : element_count(output_shape(in), Layout::nchw)};
}

void ScatterElements::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others,
                          float* out) const {
  if (others.second == nullptr) throw std::invalid_argument("scatter elements: there are no indices");
  if (!scattered_.fill && others.third == nullptr) {
    throw std::invalid_argument("scatter elements: there is nothing to begin with");
  }
  const std::int64_t pixels = shape.h * shape.w;
  const auto channel_at = [&](std::int64_t place) {
    return load_channel(others.second, place, count_, "ScatterElements");
  };
  if (shape.n * pixels == 0) return;
  const Shape made = output_shape(shape);
  const Parts parts(made, shape.c * pixels, pool.threads());
  const Source from{shape, scattered_.has_index_for_all, channel_at, in};
  pool.parallel_for(parts.count(), [&](std::int64_t number) {
    const Part part = parts.at(number);
    float* const image = out + part.image * count_ * pixels;
    for (std::int64_t channel = part.channel; channel < part.channel_end; ++channel) {
      float* const held = image + channel * pixels;
      if (scattered_.fill) {
        std::fill(held + part.pixel, held + part.pixel_end, *scattered_.fill);
      } else {
        const float* const begun = others.third + (held - out);
        std::copy(begun + part.pixel, begun + part.pixel_end, held + part.pixel);
      }
    }
    if (scattered_.first) {
      for_each_value(part, from, image, [first = *scattered_.first](float, float) { return first; });
    }
    switch (scattered_.kind) {
      case Scattering::replaced: return scatter<Scattering::replaced>(part, from, image);
      case Scattering::sum: return scatter<Scattering::sum>(part, from, image);
      case Scattering::product: return scatter<Scattering::product>(part, from, image);
      case Scattering::maximum: return scatter<Scattering::maximum>(part, from, image);
      case Scattering::minimum: return scatter<Scattering::minimum>(part, from, image);
    }
  });
}

}  // namespace sift::cpu
