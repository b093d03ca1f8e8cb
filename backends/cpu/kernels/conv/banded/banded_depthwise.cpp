#include "conv/banded/banded_depthwise.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/cache.h"
#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

constexpr auto kFloatBytes = static_cast<std::int64_t>(sizeof(float));
// Rows that two bands compute, per row of one.
constexpr double kMostRepeated = 0.25;
// Of the threads' time.
constexpr double kMostIdle = 0.1;
// Of a band. Weights are read for each band, and those of layers with few pixels are many.
constexpr std::int64_t kLeastPixels = 12 * kLanes;

// Rows of the input that adjacent rows of outputs both read.
std::int64_t shared_rows(const ConvGeometry& g) {
  return std::max<std::int64_t>((g.kernel_h - 1) * g.dilation_h + 1 - g.stride_h, 0);
}

double repeated_share(const ConvGeometry& g, std::int64_t band_rows) {
  return static_cast<double>(shared_rows(g)) / static_cast<double>(band_rows * g.stride_h);
}

// If all tasks take the same time.
double idle_share(std::int64_t tasks, int threads) {
  return 1.0 - static_cast<double>(tasks) / static_cast<double>(ceil_div(tasks, threads) * threads);
}

struct PixelRange {
  std::int64_t first;
  std::int64_t end;
};

// The pixels of these rows of an image, and those before and after them in the same blocks.
PixelRange whole_blocks(const RowRange& rows, const Shape& image) {
  if (rows.count() == 0) return {0, 0};
  return {rows.begin * image.w / kLanes * kLanes,
          std::min(ceil_div(rows.end * image.w, kLanes) * kLanes, image.h * image.w)};
}

// Floats from a channel to the next one. If all channels began at the same place of a page, they would displace each
// other from the first-level cache.
std::int64_t plane_floats(std::int64_t pixels) { return (ceil_div(pixels, kLanes) | 1) * kLanes; }

// The tensors between the layers of a band.
struct BandScratch {
  AlignedBuffer expanded;
  AlignedBuffer filtered;
};

BandScratch& band_scratch() {
  static thread_local BandScratch scratch;
  return scratch;
}

}  // namespace

BandedDepthwise::BandedDepthwise(std::shared_ptr<const Conv> before, std::shared_ptr<const Depthwise> depthwise,
                                 std::shared_ptr<const Conv> after, std::int64_t rows)
    : before_(std::move(before)), depthwise_(std::move(depthwise)), after_(std::move(after)), rows_(rows) {
  if (rows < 0) throw std::invalid_argument("bands: rows must not be negative");
  if (!depthwise_ || depthwise_->input_layout() != Layout::nchw) {
    throw std::invalid_argument("bands: there must be a depthwise layer, with images in planes");
  }
  if (!before_ && !after_) throw std::invalid_argument("bands: there is no layer next to the depthwise one");
  if ((before_ && !before_->runs_pixels()) || (after_ && !after_->runs_pixels())) {
    throw std::invalid_argument("bands: the layers next to the depthwise one must be pointwise, with images in planes");
  }
}

BandedDepthwise::Images BandedDepthwise::images_of(const Shape& in) const {
  Images images{};
  images.in = {1, in.c, in.h, in.w};
  images.expanded = before_ ? before_->output_shape(images.in) : images.in;
  images.filtered = depthwise_->output_shape(images.expanded);
  images.out = after_ ? after_->output_shape(images.filtered) : images.filtered;
  return images;
}

Shape BandedDepthwise::output_shape(const Shape& in) const {
  const Shape image = images_of(in).out;
  return {in.n, image.c, image.h, image.w};
}

OtherSizes BandedDepthwise::other_sizes(const Shape& in) const {
  return {.second = after_ ? element_count(output_shape(in), Layout::nchw) : OtherSizes::kNotTaken};
}

std::int64_t BandedDepthwise::band_rows(const Shape& in, int threads) const {
  const ConvGeometry& g = depthwise_->geometry();
  const auto [image, expanded, filtered, out] = images_of(in);
  if (filtered.h <= 1) return 1;
  if (rows_ > 0) return std::min(rows_, filtered.h);
  const std::int64_t expanded_row = before_ ? expanded.c * expanded.w * kFloatBytes : 0;
  const std::int64_t filtered_row = after_ ? filtered.c * filtered.w * kFloatBytes : 0;
  // The other half of the cache is for input, output and weights.
  const std::int64_t room = level2_cache_bytes() / 2 - shared_rows(g) * expanded_row;
  const std::int64_t row_bytes = std::max<std::int64_t>(expanded_row * g.stride_h + filtered_row, 1);
  const std::int64_t height = filtered.h;
  const auto rows_of = [height](std::int64_t bands) { return ceil_div(height, bands); };
  const std::int64_t fewest = ceil_div(height, std::clamp<std::int64_t>(room / row_bytes, 1, height));
  // If threads would wait for the last bands, more and shorter ones.
  for (std::int64_t bands = fewest; bands <= height && repeated_share(g, rows_of(bands)) <= kMostRepeated; ++bands) {
    const std::int64_t rows = rows_of(bands);
    if (idle_share(in.n * ceil_div(height, rows), threads) <= kMostIdle) return rows;
  }
  return rows_of(fewest);
}

bool BandedDepthwise::pays(const Shape& in, int threads) const {
  const auto [image, expanded, filtered, out] = images_of(in);
  if (in.n == 0 || element_count(out, Layout::nchw) == 0) return false;
  const std::int64_t between =
      (before_ ? element_count(expanded, Layout::nchw) : 0) + (after_ ? element_count(filtered, Layout::nchw) : 0);
  const std::int64_t of_thread = ceil_div(in.n, threads) * between;
  if (of_thread * kFloatBytes <= level2_cache_bytes()) return false;
  const std::int64_t rows = band_rows(in, threads);
  const std::int64_t bands = ceil_div(filtered.h, rows);
  if (rows * std::min(filtered.w, expanded.w) < kLeastPixels) return false;
  const bool repeats = bands > 1 && repeated_share(depthwise_->geometry(), rows) > kMostRepeated;
  return !repeats && idle_share(in.n * bands, threads) <= kMostIdle;
}

BandedDepthwise::Pixels BandedDepthwise::longest_band(const Shape& in, const Images& images) const {
  const ConvGeometry& g = depthwise_->geometry();
  const Shape& expanded = images.expanded;
  const std::int64_t rows = band_rows(in, 1);
  const std::int64_t read = std::min((rows - 1) * g.stride_h + (g.kernel_h - 1) * g.dilation_h + 1, expanded.h);
  // A band may begin with the last pixel of a block.
  const std::int64_t pixels = ceil_div(read * expanded.w + kLanes - 1, kLanes) * kLanes;
  return {.expanded = std::min(pixels, expanded.h * expanded.w), .filtered = rows * images.filtered.w};
}

void BandedDepthwise::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others,
                          float* out) const {
  const Images images = images_of(shape);
  const std::int64_t out_floats = element_count(images.out, Layout::nchw);
  if (shape.n * out_floats == 0) return;
  const std::int64_t height = images.filtered.h;
  const std::int64_t rows = band_rows(shape, pool.threads());
  const std::int64_t bands = ceil_div(height, rows);
  const auto rows_of = [rows, height](std::int64_t band) {
    return RowRange{band * rows, std::min((band + 1) * rows, height)};
  };
  const Pixels most = longest_band(shape, images);
  // In the first run, on all threads.
  if (before_ && most.expanded > 0) before_->prepare({1, shape.c, 1, most.expanded}, 1, &pool);
  if (after_) after_->prepare({1, images.filtered.c, 1, most.filtered}, 1, &pool);
  const std::int64_t in_floats = element_count(images.in, Layout::nchw);
  pool.parallel_for(shape.n * bands, [&](std::int64_t task) {
    const std::int64_t n = task / bands;
    const float* const residual = others.second == nullptr ? nullptr : others.second + n * out_floats;
    run_band(images, most, rows_of(task % bands), in + n * in_floats, residual, out + n * out_floats);
  });
}

void BandedDepthwise::run_band(const Images& images, const Pixels& most, const RowRange& rows, const float* in,
                               const float* residual, float* out) const {
  BandScratch& scratch = band_scratch();
  const auto& [image, expanded, filtered, result] = images;
  const RowRange read = depthwise_->rows_read(rows, expanded.h);
  const std::int64_t out_plane = result.h * result.w;
  const std::int64_t first_out = rows.begin * result.w;
  PlaneDistances planes{.in = expanded.h * expanded.w, .out = out_plane};
  const float* operand = in + read.begin * expanded.w;
  if (before_) {
    const PixelRange pixels = whole_blocks(read, expanded);
    planes.in = plane_floats(most.expanded);
    float* const own = scratch.expanded.floats(static_cast<std::size_t>(expanded.c * planes.in));
    before_->run_pixels({.first = pixels.first,
                         .end = pixels.end,
                         .most = most.expanded,
                         .in = in,
                         .in_plane = image.h * image.w,
                         .residual = nullptr,
                         .out = own,
                         .out_plane = planes.in});
    operand = own + (read.begin * expanded.w - pixels.first);
  }
  if (!after_) {
    depthwise_->run_rows(expanded, rows, operand, out + first_out, planes);
    return;
  }
  planes.out = plane_floats(most.filtered);
  float* const own = scratch.filtered.floats(static_cast<std::size_t>(filtered.c * planes.out));
  depthwise_->run_rows(expanded, rows, operand, own, planes);
  after_->run_pixels({.first = 0,
                      .end = rows.count() * filtered.w,
                      .most = most.filtered,
                      .in = own,
                      .in_plane = planes.out,
                      .residual = residual == nullptr ? nullptr : residual + first_out,
                      .out = out + first_out,
                      .out_plane = out_plane});
}

}  // namespace sift::cpu
