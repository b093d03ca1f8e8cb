#include "conv/conv.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>

#include "base/aligned_buffer.h"
#include "base/cache.h"
#include "base/thread_pool.h"
#include "conv/conv_plan.h"
#include "conv/conv_tile.h"
#include "conv/input_ahead.h"
#include "conv/kernel_parts.h"
#include "conv/row_chunks.h"
#include "conv/subsample.h"
#include "jit/code_memory.h"

namespace sift::cpu {
namespace {

constexpr std::int64_t kMostTaps = 4096;
// Layers with at most this many multiply-adds per output wait for memory if their output is large. They use
// non-temporal stores, so that lines are not fetched only to be overwritten. With more multiply-adds, memory keeps up.
constexpr double kMostNonTemporalWork = 192;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("conv: ") + what);
}

WeightForm choose_form(double density, const ConvOptions& options, const KernelTable& kernels) {
  if (density > kDenseAbove) return WeightForm::dense;
  // If all taps of a channel are in one panel without rotation, lists are longer, and pairs make up for the ends of
  // lists at a lower density.
  const bool several_taps = options.geometry.kernel_h * options.geometry.kernel_w > 1;
  const bool long_lists = options.layout == Layout::nchw_n16 && several_taps;
  return density > kernels.pair_above * (long_lists ? 2.0 / 3.0 : 1.0) ? WeightForm::csr_pairs : WeightForm::csr;
}

}  // namespace

Conv::Conv(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias, const ConvOptions& options,
           const KernelTable& kernels)
    : rows_(weights->rows()),
      columns_(weights->columns()),
      density_(weights->density()),
      options_(options),
      form_(options.form.value_or(choose_form(density_, options, kernels))),
      may_generate_(!options.form.has_value() && form_ != WeightForm::dense && kernels.runs_generated &&
                    may_execute_code()),
      kernels_(kernels),
      weights_(std::move(weights)) {
  const ConvGeometry& g = options.geometry;
  require(g.kernel_h > 0 && g.kernel_w > 0 && g.stride_h > 0 && g.stride_w > 0 && g.dilation_h > 0 &&
              g.dilation_w > 0 && g.groups > 0,
          "kernel, stride, dilation and groups must be positive");
  // Offsets into a panel have 16 bits, and a panel holds at least the taps of one channel.
  require(g.kernel_h <= kMostTaps && g.kernel_w <= kMostTaps / g.kernel_h, "the kernel has too many taps");
  require(form_ != WeightForm::code || kernels.runs_generated, "generated code needs AVX-512");
  require(form_ != WeightForm::code || may_execute_code(), "this process may not execute generated code");
  require(rows_ % g.groups == 0, "output channels are not a multiple of groups");
  require(rows_ > 0 && columns_ > 0, "the weights are empty");
  require(columns_ % (g.kernel_h * g.kernel_w) == 0, "weights have no whole number of input channels");
  require(bias.empty() || static_cast<std::int64_t>(bias.size()) == rows_, "one bias per output channel");
  const std::vector<KernelPart> parts = kernel_parts(g, options.layout, options.dtype);
  if (parts.size() > 1) {
    for (const KernelPart& part : parts) {
      ConvOptions of_part = options;
      of_part.geometry = geometry_of_part(g, part);
      if (&part != &parts.back()) of_part.activation = {};
      parts_.push_back(
          std::make_unique<Conv>(std::make_shared<const SparseWeights>(weights_of_part(*weights_, g, part)),
                                 &part == &parts.front() ? std::move(bias) : std::vector<float>{}, of_part, kernels));
    }
    return;  // weights_ stay for source(): no packed form has all of them
  }
  bias_ = padded_bias(bias);
}

// [groups][padded_rows]
std::vector<float> Conv::padded_bias(std::span<const float> bias) const {
  const std::int64_t rows = rows_ / options_.geometry.groups;
  const std::int64_t padded = padded_rows(rows);
  std::vector<float> result(static_cast<std::size_t>(padded * options_.geometry.groups), 0.0F);
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(bias.size()); ++row) {
    result[static_cast<std::size_t>(row / rows * padded + row % rows)] = bias[static_cast<std::size_t>(row)];
  }
  return result;
}

Conv::~Conv() = default;

Shape Conv::output_shape(const Shape& in) const {
  const ConvGeometry& g = options_.geometry;
  require(in.n >= 0 && in.h >= 0 && in.w >= 0, "sizes must not be negative");
  require(in.c * g.kernel_h * g.kernel_w == columns_ * g.groups,
          "the input does not have the weights' number of channels");
  return {in.n, rows_, g.output_h(in.h), g.output_w(in.w)};
}

Shape Conv::output_of(const Shape& shape, const OutputGrid* grid) const {
  Shape out = output_shape(shape);
  if (grid != nullptr) {
    require(options_.layout == Layout::nchw_n16, "only outputs in images16 may lie on a grid");
    out.h = grid->rows();
    out.w = grid->columns();
  }
  return out;
}

Conv::Description Conv::describe(const Shape& shape, int threads, const OutputGrid* grid) const {
  require(element_count(output_of(shape, grid), options_.layout) > 0, "the output is empty, and nothing is run");
  if (!parts_.empty()) {
    Description description = parts_.front()->describe(shape, threads, grid);
    for (std::size_t i = 1; i < parts_.size(); ++i) {
      description.packed_bytes += parts_[i]->describe(shape, threads, grid).packed_bytes;
    }
    return description;
  }
  const auto plan = plan_for(shape, threads, grid);
  const Tiling& tiling = plan->tiling;
  return {tiling.form, tiling.tile, tiling.slice_channels, plan->packing->bytes()};
}

void Conv::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  run(pool, shape, {.in = in, .residual = others.second, .out = out});
}

ConvJob Conv::job_of(const Plan& plan, const ConvTensors& tensors, std::int64_t group) const {
  const std::int64_t rows = plan.problem.tiling.rows;
  const std::int64_t channels = plan.problem.tiling.channels;
  return {.kernels = kernels_,
          .plan = plan.number,
          .dtype = options_.dtype,
          .rows = plan.tiling.rows,
          .geometry = plan.problem.tiling.geometry,
          .tile = plan.tiling.tile,
          .panel = plan.panel,
          .packed = plan.packing->groups[static_cast<std::size_t>(group)],
          .channels = channels,
          .slice_channels = plan.tiling.slice_channels,
          .unit_channels = plan.tiling.unit_channels,
          .scales_lists = plan.tiling.scales_lists,
          .taps = plan.taps,
          .offsets = plan.offsets,
          .rotated_lanes = plan.rotated_lanes,
          .bias = bias_.data() + group * padded_rows(rows),
          .activation = options_.activation,
          .tensors = tensors,
          .in_place = false,
          .first_in_channel = group * channels,
          .first_out_channel = group * rows,
          .row_count = rows,
          .band_rows = plan.packing->band_rows,
          .prefetches_in_runs = false,
          .non_temporal = false};
}

void Conv::run(ThreadPool& pool, const Shape& shape, const ConvCall& call) const {
  const Shape out_shape = output_of(shape, call.grid);
  if (element_count(out_shape, options_.layout) == 0) return;
  if (!parts_.empty()) {
    ConvCall of_part = call;
    for (const auto& part : parts_) {
      part->run(pool, shape, of_part);
      of_part.residual = call.out;
      of_part.bias = nullptr;
    }
    return;
  }
  const auto plan = plan_for(shape, pool.threads(), call.grid, &pool);
  if (options_.values) {
    const std::lock_guard lock(mutex_);
    plan->packing->refresh(pool, *options_.values);
  }
  const Problem& problem = plan->problem;
  const ConvPacking* const packing = plan->packing.get();
  const TileShape& tile = plan->tiling.tile;
  const ConvTensors& t = problem.tensors;
  const float* in = call.in;
  if (is_gathered()) {
    static thread_local AlignedBuffer gathered;
    const Shape read{shape.n, shape.c, out_shape.h, out_shape.w};
    float* const pixels = gathered.floats(static_cast<std::size_t>(element_count(read, Layout::nchw)));
    subsample(pool, shape, read, options_.geometry.stride_h, options_.geometry.stride_w, in, pixels);
    in = pixels;
  }
  const std::int64_t first =
      call.grid == nullptr ? 0 : (call.grid->first_y * call.grid->tensor_w + call.grid->first_x) * kLanes;
  float* const out = call.out + first;
  const float* const residual = call.residual == nullptr ? nullptr : call.residual + first;
  const std::vector<float> own_bias =
      call.bias == nullptr ? std::vector<float>{} : padded_bias({call.bias, static_cast<std::size_t>(rows_)});
  const float* const bias = call.bias == nullptr ? bias_.data() : own_bias.data();
  const std::int64_t rows = problem.tiling.rows;
  const std::int64_t groups = options_.geometry.groups;
  const TileCounts counts = count_tiles(tile, t.units, t.out_h, t.out_w);
  const std::int64_t tiles = counts.all() * groups;
  const bool weights_first = problem.tiling.takes_weights_first(tile);
  const std::vector<std::int64_t> chunks =
      balance_rows(packing->band_costs, rows, packing->band_rows, plan->tiling.row_chunks);
  const auto chunk_count = static_cast<std::int64_t>(chunks.size()) - 1;

  const bool in_runs = prefetches_in_runs(problem.tiling, plan->tiling, t);
  const bool non_temporal = stores_non_temporally(element_count(out_shape, t.layout), out, residual) &&
                            density_ * static_cast<double>(columns_) <= kMostNonTemporalWork;

  struct Task {
    ConvTile place;
    std::int64_t group;
    std::size_t chunk;
  };
  // Neighbours below each other come one after the other, since the second finds most of its input in the cache; where
  // input comes in runs, those in a row do.
  const auto task_at = [&](std::int64_t number) {
    const auto take = [&number](std::int64_t count) {
      const std::int64_t index = number % count;
      number /= count;
      return index;
    };
    const std::int64_t first = take(in_runs ? counts.x : counts.y);
    const std::int64_t second = take(in_runs ? counts.y : counts.x);
    const std::int64_t y = in_runs ? second : first;
    const std::int64_t x = in_runs ? first : second;
    const std::int64_t inner = take(weights_first ? counts.n : chunk_count);
    const std::int64_t outer = take(weights_first ? chunk_count : counts.n);
    const std::int64_t n = weights_first ? inner : outer;
    return Task{{y * tile.rows, x * tile.cols, n * tile.images},
                number,
                static_cast<std::size_t>(weights_first ? outer : inner)};
  };
  pool.parallel_for(tiles * chunk_count, [&](std::int64_t number) {
    const auto [place, group, chunk] = task_at(number);
    ConvJob job = job_of(*plan, t, group);
    job.bias = bias + group * padded_rows(rows);
    job.in_place = problem.tiling.reads_in_place();
    job.prefetches_in_runs = in_runs;
    job.non_temporal = non_temporal;
    run_tile(job, place, task_at(number + 1).place, chunks[chunk], chunks[chunk + 1], in, residual, out);
  });
}

}  // namespace sift::cpu
