#include "train/weight_gradient.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "train/gradient_packing.h"
#include "train/gradient_tile.h"

namespace sift::cpu {
namespace {

constexpr std::size_t kMostPackings = 4;
constexpr std::int64_t kManyTasks = 4;  // per thread, so that the last ones hardly matter
constexpr std::size_t kBlockBytes = kLanes * sizeof(float);

}  // namespace

struct WeightGradient::Packing {
  std::int64_t h;  // of the output
  std::int64_t w;
  GradientTile tile;
  PackedGradient packed;
};

WeightGradient::~WeightGradient() = default;

WeightGradient::WeightGradient(std::int64_t rows, std::int64_t columns, std::span<const std::int64_t> indices,
                               std::span<const std::int64_t> places, const ConvGeometry& geometry,
                               const KernelTable& kernels)
    : geometry_(geometry), kernels_(kernels), weights_{rows, columns, {}, {}, {}} {
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max() - 1;
  if (rows < 0 || columns < 0 || rows > kMost || columns > kMost || static_cast<std::int64_t>(indices.size()) > kMost) {
    throw std::invalid_argument("weight gradient: rows, columns and indices must not be negative, and fit 32 bits");
  }
  if (geometry.groups < 1 || rows % geometry.groups != 0) {
    throw std::invalid_argument("weight gradient: groups must divide the rows");
  }
  if (columns % (geometry.kernel_h * geometry.kernel_w) != 0) {
    throw std::invalid_argument("weight gradient: columns must be a multiple of the kernel's taps");
  }
  if (!places.empty() && places.size() != indices.size()) {
    throw std::invalid_argument("weight gradient: there must be one place per index");
  }
  weights_.starts.assign(static_cast<std::size_t>(rows) + 1, 0);
  weights_.columns_of.reserve(indices.size());
  std::int64_t last = -1;
  for (const std::int64_t index : indices) {
    if (index <= last || columns == 0 || index / columns >= rows) {
      throw std::invalid_argument("weight gradient: indices must ascend strictly and lie inside the matrix");
    }
    last = index;
    ++weights_.starts[static_cast<std::size_t>(index / columns) + 1];
    weights_.columns_of.push_back(static_cast<std::uint32_t>(index % columns));
  }
  std::partial_sum(weights_.starts.begin(), weights_.starts.end(), weights_.starts.begin());
  weights_.places.resize(indices.size());
  std::iota(weights_.places.begin(), weights_.places.end(), 0U);
  std::vector<bool> taken(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::int64_t place = places[i];
    if (place < 0 || place >= nnz() || taken[static_cast<std::size_t>(place)]) {
      throw std::invalid_argument("weight gradient: places must be those of the values, each once");
    }
    taken[static_cast<std::size_t>(place)] = true;
    weights_.places[i] = static_cast<std::uint32_t>(place);
  }
}

Shape WeightGradient::output_shape(const Shape& in) const {
  const std::int64_t channels = weights_.columns / (geometry_.kernel_h * geometry_.kernel_w);
  if (in.c % geometry_.groups != 0 || in.c / geometry_.groups != channels) {
    throw std::invalid_argument("weight gradient: the input has " + std::to_string(in.c) + " channels, the weights " +
                                std::to_string(channels) + " in each of " + std::to_string(geometry_.groups) +
                                " groups");
  }
  return {in.n, weights_.rows, geometry_.output_h(in.h), geometry_.output_w(in.w)};
}

std::shared_ptr<const WeightGradient::Packing> WeightGradient::packing_of(const Shape& out) const {
  const std::lock_guard lock(mutex_);
  for (const auto& known : packings_) {
    if (known->h == out.h && known->w == out.w) return known;
  }
  // What a window of one pixel reads lies in one line.
  const bool flat = geometry_.is_pointwise();
  const double density =
      static_cast<double>(nnz()) / static_cast<double>(weights_.rows) / static_cast<double>(weights_.columns);
  const GradientTile tile = choose_gradient_tile(geometry_, weights_.rows / geometry_.groups, weights_.columns, density,
                                                 flat ? 1 : out.h, flat ? out.h * out.w : out.w);
  const auto pack = [&](bool generates) {
    return std::make_shared<const Packing>(
        Packing{out.h, out.w, tile, pack_gradient(weights_, geometry_, tile, kernels_, generates)});
  };
  const bool generates = kernels_.runs_generated && may_execute_code();
  std::shared_ptr<const Packing> packing;
  try {
    packing = pack(generates);
  } catch (const CodeMemoryError&) {
    packing = pack(false);
  }
  if (packings_.size() == kMostPackings) packings_.erase(packings_.begin());
  packings_.push_back(packing);
  return packing;
}

namespace {

// Pixels of one channel and one group of 16 images.
struct PlaneCopy {
  std::int64_t y;  // of the first pixel; what lies outside of the image is zero
  std::int64_t x;
  std::int64_t step_y;
  std::int64_t step_x;
  std::int64_t h;
  std::int64_t w;
  std::int64_t pitch;  // blocks from one line to the next
};

void copy_plane(const PlaneCopy& plane, const float* image, const Shape& in, float* to) {
  // Columns of the plane that lie in the image.
  const std::int64_t begin =
      std::clamp<std::int64_t>(ceil_div(std::max<std::int64_t>(-plane.x, 0), plane.step_x), 0, plane.w);
  const std::int64_t end =
      std::clamp<std::int64_t>(ceil_div(std::max<std::int64_t>(in.w - plane.x, 0), plane.step_x), begin, plane.w);
  for (std::int64_t row = 0; row < plane.h; ++row, to += plane.pitch * kLanes) {
    const std::int64_t y = plane.y + row * plane.step_y;
    const bool is_inside = y >= 0 && y < in.h && begin < end;
    const std::int64_t first = is_inside ? begin : plane.w;
    std::memset(to, 0, static_cast<std::size_t>(first) * kBlockBytes);
    if (!is_inside) continue;
    const float* from = image + (y * in.w + plane.x + begin * plane.step_x) * kLanes;
    if (plane.step_x == 1) {
      std::memcpy(to + begin * kLanes, from, static_cast<std::size_t>(end - begin) * kBlockBytes);
    } else {
      for (std::int64_t column = begin; column < end; ++column, from += plane.step_x * kLanes) {
        std::memcpy(to + column * kLanes, from, kBlockBytes);
      }
    }
    std::memset(to + end * kLanes, 0, static_cast<std::size_t>(plane.w - end) * kBlockBytes);
  }
}

// Output pixels of a tile that lie in the tensor.
struct TilePlace {
  std::int64_t group;
  std::int64_t y;
  std::int64_t x;
  std::int64_t groups;
  std::int64_t h;
  std::int64_t w;
};

// Where the lines of a tile's pixels lie in a plane, and in a row of gradients.
void list_lines(const GradientTile& tile, const TilePlace& place, const float* panel, const float* gradients,
                std::vector<GradientLine>& lines) {
  lines.clear();
  for (std::int64_t line = 0; line < place.groups * place.h; ++line) {
    const std::int64_t at = (line / place.h * tile.plane_h + line % place.h) * tile.plane_w;
    const GradientLine next{panel + at * kLanes, gradients + line * place.w * kLanes,
                            static_cast<std::uint64_t>(place.w)};
    if (!lines.empty() && lines.back().x + lines.back().count * kLanes == next.x) {
      lines.back().count += next.count;
    } else {
      lines.push_back(next);
    }
  }
}

}  // namespace

// Adds up the gradients of some slices of a chunk, tile after tile.
class WeightGradient::Task {
 public:
  Task(const WeightGradient& gradient, const GradientTile& tile, const GradientChunk& chunk,
       std::span<const GradientSlice> slices, const Shape& in, const Shape& out)
      : geometry_(gradient.geometry_),
        kernels_(gradient.kernels_),
        tile_(tile),
        chunk_(chunk),
        slices_(slices),
        in_(in),
        out_(out) {
    const std::int64_t in_channels = in.c / geometry_.groups;
    first_channel_ = chunk.row_begin / (out.c / geometry_.groups) * in_channels;
  }

  void run(const float* x, const float* dy, float* dvalues, bool accumulate) const {
    Scratch& scratch = thread_scratch();
    std::size_t sum_count = 0;
    std::size_t most_planes = 0;
    for (const GradientSlice& slice : slices_) {
      sum_count += slice.places.size();
      most_planes = std::max(most_planes, slice.planes.size());
    }
    float* const sums = scratch.sums.floats(sum_count);
    float* const panel = scratch.panel.floats(most_planes * static_cast<std::size_t>(tile_.plane_floats()));
    float* const gradients =
        scratch.gradients.floats(static_cast<std::size_t>(chunk_.rows * tile_.positions() * kLanes));
    std::fill_n(sums, sum_count, 0.0F);
    const std::int64_t image_groups = ceil_div(in_.n, kLanes);
    for (std::int64_t group = 0; group < image_groups; group += tile_.groups) {
      for (std::int64_t y = 0; y < out_.h; y += tile_.h) {
        for (std::int64_t left = 0; left < out_.w; left += tile_.w) {
          const TilePlace place{group,
                                y,
                                left,
                                std::min(tile_.groups, image_groups - group),
                                std::min(tile_.h, out_.h - y),
                                std::min(tile_.w, out_.w - left)};
          list_lines(tile_, place, panel, gradients, scratch.lines);
          copy_gradients(place, dy, gradients);
          float* slice_sums = sums;
          for (const GradientSlice& slice : slices_) {
            copy_operands(place, slice, x, panel);
            multiply(slice, scratch.lines, slice_sums);
            slice_sums += slice.places.size();
          }
        }
      }
    }
    const float* sum = sums;
    for (const GradientSlice& slice : slices_) {
      for (const std::uint32_t place : slice.places) {
        if (place != GradientSlice::kNoPlace) dvalues[place] = accumulate ? dvalues[place] + *sum : *sum;
        ++sum;
      }
    }
  }

 private:
  struct Scratch {
    AlignedBuffer sums;
    AlignedBuffer panel;
    AlignedBuffer gradients;
    std::vector<GradientLine> lines;
  };
  static Scratch& thread_scratch() {
    static thread_local Scratch scratch;
    return scratch;
  }

  // Rows of an image lie pages apart, in the same sets of the cache: copied, they do not. Line after line: of tokens,
  // adjacent rows are adjacent in memory.
  void copy_gradients(const TilePlace& place, const float* dy, float* to) const {
    const std::int64_t plane = out_.h * out_.w;
    const std::int64_t pitch = tile_.positions() * kLanes;
    const std::size_t bytes = static_cast<std::size_t>(place.w) * kBlockBytes;
    for (std::int64_t line = 0; line < place.groups * place.h; ++line) {
      const std::int64_t channel = (place.group + line / place.h) * out_.c + chunk_.row_begin;
      const float* from = dy + (channel * plane + (place.y + line % place.h) * out_.w + place.x) * kLanes;
      float* line_to = to + line * place.w * kLanes;
      for (std::int64_t row = 0; row < chunk_.rows; ++row, from += plane * kLanes, line_to += pitch) {
        std::memcpy(line_to, from, bytes);
      }
    }
  }

  void copy_operands(const TilePlace& place, const GradientSlice& slice, const float* x, float* to) const {
    PlaneCopy copy{.y = 0,
                   .x = 0,
                   .step_y = geometry_.stride_h,
                   .step_x = geometry_.stride_w,
                   .h = place.h + tile_.plane_h - tile_.h,
                   .w = place.w + tile_.plane_w - tile_.w,
                   .pitch = tile_.plane_w};
    for (std::int64_t group = 0; group < place.groups; ++group, to += tile_.plane_h * tile_.plane_w * kLanes) {
      const float* const image = x + ((place.group + group) * in_.c + first_channel_) * in_.h * in_.w * kLanes;
      float* plane_to = to;
      for (const GradientSlice::Plane& plane : slice.planes) {
        copy.y = place.y * geometry_.stride_h - geometry_.pad_top + plane.y;
        copy.x = place.x * geometry_.stride_w - geometry_.pad_left + plane.x;
        copy_plane(copy, image + plane.channel * in_.h * in_.w * kLanes, in_, plane_to);
        plane_to += tile_.plane_floats();
      }
    }
  }

  void multiply(const GradientSlice& slice, std::span<const GradientLine> lines, float* sums) const {
    for (const GradientSlice::Piece& piece : slice.pieces) {
      run_gradient_code(piece.code, lines, sums);
      sums += piece.blocks * std::size_t{kGradientCodeFloats};
    }
    const std::uint32_t* offsets = slice.offsets.data();
    const std::uint32_t* rows = slice.rows.data();
    for (GradientRun run : slice.runs) {
      const std::int64_t together = kernels_.gradient_rows(run.slots);
      run.offsets = offsets;
      run.rows = rows;
      run.sums = sums;
      kernels_.weight_gradient(lines, run);
      offsets += run.blocks * together * run.slots;
      rows += run.blocks * together;
      sums += run.blocks * ceil_div(together * run.slots, kLanes) * kLanes;
    }
  }

  const ConvGeometry& geometry_;
  const KernelTable& kernels_;
  const GradientTile& tile_;
  const GradientChunk& chunk_;
  std::span<const GradientSlice> slices_;
  Shape in_;
  Shape out_;
  std::int64_t first_channel_;
};

void WeightGradient::run(ThreadPool& pool, const Shape& shape, const float* x, const float* dy, float* dvalues,
                         bool accumulate) const {
  Shape in = shape;
  Shape out = output_shape(shape);
  if (nnz() == 0) return;
  if (element_count(out, Layout::nchw) == 0) {
    if (!accumulate) std::fill_n(dvalues, nnz(), 0.0F);
    return;
  }
  const auto packing = packing_of(out);
  if (geometry_.is_pointwise()) {
    in = {in.n, in.c, 1, in.h * in.w};
    out = {out.n, out.c, 1, out.h * out.w};
  }
  // Each task copies the gradients of its chunk, so that there are no more of them than keep all threads at work.
  const auto chunk_count = static_cast<std::int64_t>(packing->packed.chunks.size());
  std::int64_t parts = 1;
  while (chunk_count * parts % pool.threads() != 0 && chunk_count * parts < kManyTasks * pool.threads()) ++parts;
  pool.parallel_for(chunk_count * parts, [&](std::int64_t i) {
    const GradientChunk& chunk = packing->packed.chunks[static_cast<std::size_t>(i / parts)];
    const auto slices = static_cast<std::int64_t>(chunk.slices.size());
    const auto begin = static_cast<std::size_t>(slices * (i % parts) / parts);
    const auto end = static_cast<std::size_t>(slices * (i % parts + 1) / parts);
    if (begin == end) return;
    Task(*this, packing->tile, chunk, std::span(chunk.slices).subspan(begin, end - begin), in, out)
        .run(x, dy, dvalues, accumulate);
  });
}

}  // namespace sift::cpu
