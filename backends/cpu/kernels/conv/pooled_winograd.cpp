#include "conv/pooled_winograd.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/cache.h"
#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// Rows of tiles that a thread takes at a time are a strip. Strips with even numbers come first, all at once, then the
// others: two that have parts of the same windows never run at the same time.
struct Strips {
  std::int64_t tiles;  // in each but the last

  std::int64_t of(std::int64_t tile) const { return tile / tiles; }

  // Of the tiles from `first` to `last`, which lie in two strips at most, the one that comes first.
  std::int64_t earliest(std::int64_t first, std::int64_t last) const {
    return of(first) % 2 != 0 && of(last) != of(first) ? of(last) * tiles : first;
  }
};

// What a tile has, along one axis, of the window of a pooled pixel.
struct Part {
  std::int64_t pixel;
  std::int64_t begin;  // in the tile
  std::int64_t count;
  bool is_first;  // none of this window has been seen before
};

// For each tile along an axis its parts of the windows.
std::vector<std::vector<Part>> cut_windows(std::int64_t size, std::int64_t pixels, std::int64_t kernel,
                                           std::int64_t stride, std::int64_t pad, std::int64_t tile,
                                           const Strips& strips) {
  std::vector<std::vector<Part>> parts(static_cast<std::size_t>(ceil_div(size, tile)));
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
    const std::int64_t first = std::max<std::int64_t>(pixel * stride - pad, 0);
    const std::int64_t last = std::min(pixel * stride - pad + kernel, size);
    const std::int64_t earliest = strips.earliest(first / tile, (last - 1) / tile);
    for (std::int64_t begin = first; begin < last;) {
      const std::int64_t end = std::min((begin / tile + 1) * tile, last);
      parts[static_cast<std::size_t>(begin / tile)].push_back(
          {pixel, begin % tile, end - begin, begin / tile == earliest});
      begin = end;
    }
  }
  return parts;
}

// In memory of the calling thread, until the call for another tile.
const std::vector<PoolPart>& list_parts(const std::vector<Part>& rows, const std::vector<Part>& columns,
                                        std::int64_t width, std::int64_t tile) {
  static thread_local std::vector<PoolPart> parts;
  parts.clear();
  for (const Part& y : rows) {
    for (const Part& x : columns) {
      parts.push_back({.target = (y.pixel * width + x.pixel) * kLanes,
                       .source = static_cast<std::uint32_t>((y.begin * tile + x.begin) * kLanes),
                       .rows = static_cast<std::uint16_t>(y.count),
                       .columns = static_cast<std::uint16_t>(x.count),
                       .is_first = y.is_first && x.is_first});
    }
  }
  return parts;
}

}  // namespace

PooledWinograd::PooledWinograd(const SparseWeights& weights, std::vector<float> bias, const ConvGeometry& geometry,
                               Activation activation, const ConvGeometry& window, bool ceil_mode, Layout layout,
                               const KernelTable& kernels)
    : conv_(weights, std::move(bias), geometry, layout == Layout::nchw ? activation : Activation{}, layout, kernels),
      pool_(window, ceil_mode, layout, kernels),
      window_(window),
      activation_(activation),
      kernels_(kernels) {
  const std::int64_t pad_h = std::max(window.pad_top, window.pad_bottom);
  const std::int64_t pad_w = std::max(window.pad_left, window.pad_right);
  if (window.dilation_h != 1 || window.dilation_w != 1 || pad_h >= window.kernel_h || pad_w >= window.kernel_w) {
    throw std::invalid_argument("winograd: the window behind it is dilated, or not larger than its padding");
  }
}

void PooledWinograd::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  if (element_count(output_shape(shape), input_layout()) == 0) return;
  const Shape convolved = conv_.output_shape(shape);
  if (element_count(convolved, input_layout()) == 0) {
    // Windows over nothing but padding.
    pool_.run(pool, convolved, in, {}, out);
  } else if (input_layout() == Layout::nchw) {
    run_nchw(pool, shape, in, out);
  } else {
    run_nchw_n16(pool, shape, in, out);
  }
}

// A band has the fewest rows of tiles that nearly fill their blocks of sixteen, of those that leave room for weights in
// the second-level cache.
std::int64_t PooledWinograd::band_tiles(const Shape& convolved) const {
  constexpr std::int64_t kLeast = 2;
  constexpr double kNearly = 1.03;
  const std::int64_t columns = ceil_div(convolved.w, tile());
  const auto blocks_per_row = [&](std::int64_t rows) {
    return static_cast<double>(ceil_div(rows * columns, kLanes)) / static_cast<double>(rows);
  };
  const std::int64_t tile_row_bytes = tile() * convolved.c * convolved.w * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t most = std::max(level2_cache_bytes() * 3 / 4 / tile_row_bytes, kLeast);
  std::int64_t best = 1;
  for (std::int64_t rows = 2; rows <= std::min(most, ceil_div(convolved.h, tile())); ++rows) {
    if (blocks_per_row(rows) * kNearly < blocks_per_row(best)) best = rows;
  }
  return best;
}

// Threads take images. Of images that are fewer than threads, each takes as many of the pooled rows, where the rows of
// tiles that two of them compute are few. Else all run the two operators image by image: what lies between these stays
// in the last-level cache.
void PooledWinograd::run_nchw(ThreadPool& pool, const Shape& shape, const float* in, float* out) const {
  static thread_local AlignedBuffer between;
  const Shape image{1, shape.c, shape.h, shape.w};
  const Shape convolved = conv_.output_shape(image);
  const std::int64_t in_floats = element_count(image, Layout::nchw);
  const std::int64_t out_floats = element_count(output_shape(image), Layout::nchw);
  const std::int64_t whole = shape.n / pool.threads() * pool.threads();
  const std::int64_t height = output_shape(image).h;
  pool.parallel_for(whole,
                    [&](std::int64_t n) { pool_rows(image, {0, height}, in + n * in_floats, out + n * out_floats); });
  if (whole == shape.n) return;
  constexpr std::int64_t kLeastTileRows = 12;  // of a thread; two of them share one
  const std::int64_t parts = pool.threads();
  if (ceil_div(convolved.h, tile()) >= kLeastTileRows * parts) {
    pool.parallel_for((shape.n - whole) * parts, [&](std::int64_t task) {
      const std::int64_t n = whole + task / parts;
      const std::int64_t part = task % parts;
      pool_rows(image, {height * part / parts, height * (part + 1) / parts}, in + n * in_floats, out + n * out_floats);
    });
    return;
  }
  float* const sums = between.floats(static_cast<std::size_t>(element_count(convolved, Layout::nchw)));
  for (std::int64_t n = whole; n < shape.n; ++n) {
    conv_.run(pool, image, in + n * in_floats, {}, sums);
    pool_.run(pool, convolved, sums, {}, out + n * out_floats);
  }
}

// Some pooled rows of an image of this shape, band by band.
void PooledWinograd::pool_rows(const Shape& image, RowRange wanted, const float* in, float* out) const {
  static thread_local AlignedBuffer buffer;
  const Shape convolved = conv_.output_shape(image);
  const Shape pooled = pool_.output_shape(convolved);
  const std::int64_t tile_rows = ceil_div(convolved.h, tile());
  const std::int64_t tile_columns = ceil_div(convolved.w, tile());
  const std::int64_t band = band_tiles(convolved);
  std::int64_t done = wanted.begin;  // pooled rows
  std::int64_t first = std::min(pool_.rows_read({done, done + 1}, convolved.h).begin / tile(), tile_rows - 1);
  // Rows of the convolution from the first that is still needed on; no window needs more of those before a band.
  RowRange held{first * tile(), first * tile()};
  const std::int64_t most_held = std::min(band * tile() + window_.kernel_h, convolved.h);
  const std::int64_t plane = most_held * convolved.w;
  float* const rows = buffer.floats(static_cast<std::size_t>(plane * convolved.c));
  for (; done < wanted.end && first < tile_rows; first += band) {
    const std::int64_t end = std::min(first + band, tile_rows);
    const RowRange computed{first * tile(), std::min(end * tile(), convolved.h)};
    for (std::int64_t at = first * tile_columns; at < end * tile_columns; at += kLanes) {
      const Winograd::Block block{
          .tiles = std::min(kLanes, end * tile_columns - at), .rows = tile_rows, .columns = tile_columns, .first = at};
      conv_.run_block(image, block, in,
                      {.out = rows + held.count() * convolved.w,
                       .residual = nullptr,
                       .plane = plane,
                       .unit = 0,
                       .first_row = computed.begin,
                       .end_row = computed.end,
                       .non_temporal = false});
    }
    held.end = computed.end;
    RowRange ready{done, done};
    while (ready.end < wanted.end && pool_.rows_read({ready.end, ready.end + 1}, convolved.h).end <= held.end) {
      ++ready.end;
    }
    if (ready.count() > 0) {
      const std::int64_t from = pool_.rows_read(ready, convolved.h).begin;
      pool_.run_rows(convolved, ready, rows + (from - held.begin) * convolved.w, out + done * pooled.w,
                     {.in = plane, .out = pooled.h * pooled.w});
      done = ready.end;
    }
    if (done == wanted.end) break;
    const std::int64_t kept = std::min(pool_.rows_read({done, done + 1}, convolved.h).begin, held.end);
    for (std::int64_t channel = 0; channel < convolved.c && kept > held.begin; ++channel) {
      float* const to = rows + channel * plane;
      std::copy(to + (kept - held.begin) * convolved.w, to + held.count() * convolved.w, to);
    }
    held.begin = kept;
  }
}

void PooledWinograd::run_nchw_n16(ThreadPool& pool, const Shape& shape, const float* in, float* out) const {
  const Shape convolved = conv_.output_shape(shape);
  const Shape pooled = pool_.output_shape(convolved);
  const std::int64_t units = ceil_div(shape.n, kLanes);
  const std::int64_t tile_rows = ceil_div(convolved.h, tile());
  const std::int64_t tile_columns = ceil_div(convolved.w, tile());

  constexpr std::int64_t kTasksPerThread = 4;  // enough to balance, of even strips and of odd ones
  const std::int64_t wanted = ceil_div(2 * kTasksPerThread * pool.threads(), units);
  // No window may reach over a whole strip.
  const Strips strips{std::max(ceil_div(tile_rows, wanted), ceil_div(window_.kernel_h, tile()))};
  const std::int64_t strip_count = ceil_div(tile_rows, strips.tiles);
  const auto down =
      cut_windows(convolved.h, pooled.h, window_.kernel_h, window_.stride_h, window_.pad_top, tile(), strips);
  const auto across = cut_windows(convolved.w, pooled.w, window_.kernel_w, window_.stride_w, window_.pad_left, tile(),
                                  {.tiles = tile_columns});
  for (const std::int64_t odd : {0, 1}) {
    const std::int64_t each = (strip_count + 1 - odd) / 2;
    pool.parallel_for(units * each, [&](std::int64_t task) {
      const std::int64_t unit = task / each;
      const std::int64_t first = (2 * (task % each) + odd) * strips.tiles;
      for (std::int64_t y = first; y < std::min(first + strips.tiles, tile_rows); ++y) {
        for (std::int64_t x = 0; x < tile_columns; ++x) {
          const std::vector<PoolPart>& parts =
              list_parts(down[static_cast<std::size_t>(y)], across[static_cast<std::size_t>(x)], pooled.w, tile());
          const Winograd::Block block{
              .rows = tile_rows, .columns = tile_columns, .first = (unit * tile_rows + y) * tile_columns + x};
          pool_tile(conv_.points_of(shape, block, in), parts, pooled.h * pooled.w * kLanes,
                    out + unit * conv_.rows() * pooled.h * pooled.w * kLanes);
        }
      }
    });
  }
}

// All rows of weights of one tile, into the maxima of channels that are `plane` floats long.
void PooledWinograd::pool_tile(const float* points, const std::vector<PoolPart>& parts, std::int64_t plane,
                               float* out) const {
  PoolArgs args{};
  args.parts = parts.data();
  args.count = static_cast<std::uint32_t>(parts.size());
  args.tile = static_cast<std::uint32_t>(tile());
  args.out_stride = plane;
  args.activation = activation_;
  for (std::int64_t row = 0; row < conv_.rows(); row += kWinogradRows) {
    args.rows = static_cast<std::uint32_t>(std::min<std::int64_t>(kWinogradRows, conv_.rows() - row));
    args.out = out + row * plane;
    for (std::uint32_t i = 0; i < args.rows; ++i) {
      for (const PoolPart& part : parts) __builtin_prefetch(args.out + i * plane + part.target, 1);
    }
    args.sums = conv_.sums_of(points, row);
    kernels_.pool_tile(args);
  }
}

}  // namespace sift::cpu
