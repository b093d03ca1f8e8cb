#include "ops/channel_copy.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/thread_pool.h"

namespace sift::cpu {

ChannelCopy::ChannelCopy(std::vector<std::int64_t> channels, std::int64_t first, std::int64_t total, Layout layout)
    : channels_(std::move(channels)), first_(first), total_(total), layout_(layout) {
  for (const std::int64_t channel : channels_) {
    if (channel < 0 || channel >= kMostElements) throw std::invalid_argument("channel copy: there is no such channel");
    end_ = std::max(end_, channel + 1);
  }
  if (first < 0 || total < 0 || static_cast<std::int64_t>(channels_.size()) > total - first) {
    throw std::invalid_argument("channel copy: the output has no room for the channels");
  }
}

Shape ChannelCopy::output_shape(const Shape& in) const {
  if (in.c < end_) throw std::invalid_argument("channel copy: the input does not have these channels");
  return {in.n, total_, in.h, in.w};
}

void ChannelCopy::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  output_shape(shape);
  const bool nchw = layout_ == Layout::nchw;
  const std::int64_t units = nchw ? shape.n : ceil_div(shape.n, kLanes);
  const std::int64_t plane = shape.h * shape.w * (nchw ? 1 : kLanes);
  const auto count = static_cast<std::int64_t>(channels_.size());
  if (plane == 0 || count == 0) return;
  constexpr std::int64_t kPiece = 16384;  // floats: enough to be worth a thread, little enough to balance
  const std::int64_t together = std::max<std::int64_t>(kPiece / plane, 1);
  const std::int64_t pieces = ceil_div(count, together);
  pool.parallel_for(units * pieces, [&](std::int64_t task) {
    const std::int64_t unit = task / pieces;
    const std::int64_t begin = task % pieces * together;
    const std::int64_t end = std::min(count, begin + together);
    const float* const from = in + unit * shape.c * plane;
    float* const to = out + (unit * total_ + first_) * plane;
    const auto channel = [this](std::int64_t i) { return channels_[static_cast<std::size_t>(i)]; };
    for (std::int64_t i = begin; i < end;) {
      std::int64_t last = i + 1;  // adjacent channels are one copy
      while (last < end && channel(last) == channel(last - 1) + 1) ++last;
      std::memcpy(to + i * plane, from + channel(i) * plane, static_cast<std::size_t>((last - i) * plane) * sizeof *to);
      i = last;
    }
  });
}

}  // namespace sift::cpu
