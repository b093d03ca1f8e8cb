#include "train/weight_gradient/weight_gradient.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "train/weight_gradient/gradient_copies.h"
#include "train/weight_gradient/gradient_packing.h"
#include "train/weight_gradient/gradient_tile.h"
#include "weights/changing_values.h"

namespace sift::cpu {
namespace {

constexpr std::size_t kMostPackings = 4;
constexpr std::int64_t kManyTasks = 4;  // per thread, so that the last ones hardly matter

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
    : WeightGradient(std::make_shared<const SparseWeights>(weights_of_places(rows, columns, indices, places)), geometry,
                     kernels) {}

WeightGradient::WeightGradient(std::shared_ptr<const SparseWeights> weights, const ConvGeometry& geometry,
                               const KernelTable& kernels)
    : geometry_(geometry), kernels_(kernels), weights_(std::move(weights)) {
  if (geometry.groups < 1 || weights_->rows() % geometry.groups != 0) {
    throw std::invalid_argument("weight gradient: groups must divide the rows");
  }
  if (weights_->columns() % (geometry.kernel_h * geometry.kernel_w) != 0) {
    throw std::invalid_argument("weight gradient: columns must be a multiple of the kernel's taps");
  }
}

Shape WeightGradient::output_shape(const Shape& in) const {
  const std::int64_t channels = weights_->columns() / (geometry_.kernel_h * geometry_.kernel_w);
  if (in.c % geometry_.groups != 0 || in.c / geometry_.groups != channels) {
    throw std::invalid_argument("weight gradient: the input has " + std::to_string(in.c) + " channels, the weights " +
                                std::to_string(channels) + " in each of " + std::to_string(geometry_.groups) +
                                " groups");
  }
  return {in.n, weights_->rows(), geometry_.output_h(in.h), geometry_.output_w(in.w)};
}

std::shared_ptr<const WeightGradient::Packing> WeightGradient::packing_of(const Shape& out, ThreadPool& pool) const {
  const std::lock_guard lock(mutex_);
  for (const auto& known : packings_) {
    if (known->h == out.h && known->w == out.w) return known;
  }
  // What a window of one pixel reads lies in one line.
  const bool flat = geometry_.is_pointwise();
  const auto pack = [&](bool generates) {
    const GradientTile tile =
        choose_gradient_tile(geometry_, weights_->rows() / geometry_.groups, weights_->columns(), weights_->density(),
                             flat ? 1 : out.h, flat ? out.h * out.w : out.w, generates);
    return std::make_shared<const Packing>(
        Packing{out.h, out.w, tile, pack_gradient(*weights_, geometry_.groups, tile, kernels_, generates, pool)});
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
    std::int64_t most_planes = 0;
    for (const GradientSlice& slice : slices_) {
      sum_count += slice.places.size();
      most_planes = std::max(most_planes, slice.plane_count);
    }
    float* const sums = scratch.sums.floats(sum_count);
    float* const panel = scratch.panel.floats(static_cast<std::size_t>(most_planes * tile_.plane_floats()));
    float* const gradients =
        scratch.gradients.floats(static_cast<std::size_t>(chunk_.rows * tile_.positions() * kLanes));
    std::fill_n(sums, sum_count, 0.0F);
    // Panels, one for each tile and slice. While one is multiplied, what the next one is copied from is prefetched.
    const std::vector<TilePlace> places = places_of_tiles(tile_, out_);
    const auto list_panel = [&](std::size_t at) {
      scratch.panel_copies.clear();
      if (at == places.size() * slices_.size()) return;
      list_operands(geometry_, tile_, places[at / slices_.size()], slices_[at % slices_.size()].planes,
                    {x, in_, first_channel_}, panel, scratch.panel_copies);
    };
    const auto list_rows = [&](std::size_t at) {
      scratch.row_copies.clear();
      if (at == places.size()) return;
      list_gradients(tile_, places[at], chunk_.rows, {dy, out_, chunk_.row_begin}, gradients, scratch.row_copies);
    };
    list_rows(0);
    list_panel(0);
    std::size_t at = 0;
    for (std::size_t tile = 0; tile < places.size(); ++tile) {
      kernels_.copy_blocks(scratch.row_copies);
      list_rows(tile + 1);
      CopyPrefetcher rows_ahead(scratch.row_copies);
      list_lines(tile_, places[tile], panel, gradients, scratch.lines);
      float* slice_sums = sums;
      auto left = static_cast<std::int64_t>(slices_.size());
      for (const GradientSlice& slice : slices_) {
        kernels_.copy_blocks(scratch.panel_copies);
        list_panel(++at);
        Ahead ahead{CopyPrefetcher(scratch.panel_copies), rows_ahead, left--};
        multiply(slice, scratch.lines, ahead, slice_sums);
        slice_sums += slice.places.size();
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
    std::vector<BlockCopy> panel_copies;
    std::vector<BlockCopy> row_copies;
  };
  // What is prefetched while a slice is multiplied.
  struct Ahead {
    CopyPrefetcher panel;
    CopyPrefetcher& rows;
    std::int64_t slices;  // of the tile that are left

    void step(std::int64_t steps) {
      panel.step(steps);
      rows.step(steps * slices);
    }
  };
  static Scratch& thread_scratch() {
    static thread_local Scratch scratch;
    return scratch;
  }

  // As much code as the piece itself is, of the next one.
  static void prefetch_behind(std::span<const std::byte> piece) {
    constexpr std::size_t kLine = 64;
    const auto end = reinterpret_cast<std::uintptr_t>(piece.data() + piece.size());
    for (std::size_t at = 0; at < piece.size(); at += kLine) prefetch_line(end + at);
  }

  void multiply(const GradientSlice& slice, std::span<const GradientLine> lines, Ahead& ahead, float* sums) const {
    auto steps = static_cast<std::int64_t>(slice.pieces.size() + slice.runs.size());
    for (const GradientSlice::Piece& piece : slice.pieces) {
      ahead.step(steps--);
      prefetch_behind(piece.code);
      run_gradient_code(piece.code.data(), lines, sums);
      sums += piece.blocks * std::size_t{kGradientCodeFloats};
    }
    const std::uint32_t* offsets = slice.offsets.data();
    const std::uint32_t* rows = slice.rows.data();
    for (GradientRun run : slice.runs) {
      const std::int64_t together = kernels_.gradient_rows(run.slots);
      run.offsets = offsets;
      run.rows = rows;
      run.sums = sums;
      ahead.step(steps--);
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
  const auto packing = packing_of(out, pool);
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
