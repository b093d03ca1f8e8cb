#include "ops/rearrange.h"

#include <algorithm>
#include <stdexcept>

#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// Enough to be worth a thread, little enough to balance.
constexpr std::int64_t kTaskFloats = 16384;

void check_map(const RearrangeMap& map, const Shape& in, Layout in_layout, const Shape& out, Layout out_layout) {
  const std::int64_t size = element_count(in, in_layout);
  element_count(out, out_layout);
  if (static_cast<std::int64_t>(map.positions.size()) != out.n * out.h * out.w) {
    throw std::invalid_argument("rearrange: one place per position of the output");
  }
  const auto count = static_cast<std::int64_t>(map.channels.size());
  if (map.first_channel < 0 || count > out.c || map.first_channel > out.c - count) {
    throw std::invalid_argument("rearrange: the output does not have the channels that are written");
  }
  if (map.channels.empty()) return;
  const auto [least, most] = std::ranges::minmax(map.channels);
  if (least < 0 || most >= kMostElements)
    throw std::invalid_argument("rearrange: a channel lies outside of the operand");
  for (const std::int64_t position : map.positions) {
    if (position == RearrangeMap::kKept) continue;
    if (position < 0 || position >= size - most) {
      throw std::invalid_argument("rearrange: a position lies outside of the operand");
    }
  }
}

}  // namespace

Rearrange::Rearrange(const RearrangeMap& map, const Shape& in, Layout in_layout, const Shape& out, Layout out_layout,
                     const KernelTable& kernels)
    : in_shape_(in),
      out_shape_(out),
      in_layout_(in_layout),
      out_layout_(out_layout),
      channels_(map.channels),
      first_channel_(map.first_channel),
      kernels_(kernels) {
  check_map(map, in, in_layout, out, out_layout);
  channels_adjacent_ = std::ranges::adjacent_find(
                           channels_, [](std::int64_t a, std::int64_t b) { return b != a + 1; }) == channels_.end();
  if (channels_.empty()) return;
  if (out_layout == Layout::nchw && out.h * out.w == 1) {
    rows_ = map.positions;
  } else {
    add_lanes(map.positions);
  }
}

// Finds the blocks of an output in lanes, or of images in planes.
void Rearrange::add_lanes(const std::vector<std::int64_t>& positions) {
  const std::int64_t pixels = out_shape_.h * out_shape_.w;
  const std::int64_t image = out_shape_.c * pixels;
  std::int64_t sources[kLanes];
  if (out_layout_ == Layout::nchw) {
    for (std::int64_t n = 0; n < out_shape_.n; ++n) {
      for (std::int64_t pixel = 0; pixel < pixels; pixel += kLanes) {
        const std::int64_t lanes = std::min(kLanes, pixels - pixel);
        std::copy_n(positions.begin() + n * pixels + pixel, lanes, sources);
        add_block(n * image + first_channel_ * pixels + pixel, sources, lanes);
      }
    }
    return;
  }
  for (std::int64_t first = 0; first < out_shape_.n; first += kLanes) {
    for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        // Lanes past the last image hold what that one does: finite values.
        const std::int64_t n = std::min(first + lane, out_shape_.n - 1);
        sources[lane] = positions[static_cast<std::size_t>(n * pixels + pixel)];
      }
      add_block(first * image + (first_channel_ * pixels + pixel) * kLanes, sources, kLanes);
    }
  }
}

void Rearrange::add_block(std::int64_t out, const std::int64_t (&sources)[kLanes], std::int64_t lanes) {
  const std::size_t first_run = runs_.size();
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    if (sources[lane] == RearrangeMap::kKept) continue;
    const bool continues = runs_.size() > first_run && lane > 0 && sources[lane - 1] != RearrangeMap::kKept &&
                           sources[lane] == sources[lane - 1] + 1;
    if (continues) {
      ++runs_.back().count;
    } else {
      runs_.push_back({.source = sources[lane], .lane = static_cast<std::int32_t>(lane), .count = 1});
    }
  }
  if (runs_.size() > first_run) blocks_.push_back({.out = out, .first_run = first_run, .end_run = runs_.size()});
}

Shape Rearrange::output_shape(const Shape& in) const {
  if (in != in_shape_) throw std::invalid_argument("rearrange: the map is for an input of another shape");
  return out_shape_;
}

void Rearrange::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  output_shape(shape);
  const auto channels = static_cast<std::int64_t>(channels_.size());
  if (channels == 0) return;
  if (!rows_.empty()) {
    const std::int64_t together = ceil_div(kTaskFloats, channels);
    const auto rows = static_cast<std::int64_t>(rows_.size());
    pool.parallel_for(ceil_div(rows, together), [&](std::int64_t task) {
      const std::int64_t end = std::min(rows, (task + 1) * together);
      for (std::int64_t row = task * together; row < end; ++row) copy_row(row, in, out);
    });
    return;
  }
  const std::int64_t step = out_shape_.h * out_shape_.w * (out_layout_ == Layout::nchw_n16 ? kLanes : 1);
  const auto blocks = static_cast<std::int64_t>(blocks_.size());
  const std::int64_t together = ceil_div(kTaskFloats, channels * kLanes);
  pool.parallel_for(ceil_div(blocks, together), [&](std::int64_t task) {
    const std::int64_t end = std::min(blocks, (task + 1) * together);
    for (std::int64_t i = task * together; i < end; ++i) {
      const Block& block = blocks_[static_cast<std::size_t>(i)];
      kernels_.rearrange({.in = in,
                          .runs = runs_.data() + block.first_run,
                          .run_count = static_cast<std::int64_t>(block.end_run - block.first_run),
                          .channels = channels_.data(),
                          .channel_count = channels,
                          .channels_adjacent = channels_adjacent_,
                          .out = out + block.out,
                          .out_step = step});
    }
  });
}

void Rearrange::copy_row(std::int64_t row, const float* in, float* out) const {
  const std::int64_t position = rows_[static_cast<std::size_t>(row)];
  if (position == RearrangeMap::kKept) return;
  const float* const from = in + position;
  float* const to = out + row * out_shape_.c + first_channel_;
  if (channels_adjacent_) {
    std::copy_n(from + channels_[0], channels_.size(), to);
  } else {
    for (std::size_t c = 0; c < channels_.size(); ++c) to[c] = from[channels_[c]];
  }
}

}  // namespace sift::cpu
