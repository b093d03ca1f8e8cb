#include "conv/conv_plan.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <ranges>

#include "jit/code_memory.h"
#include "weights/pack_lists.h"

namespace sift::cpu {
namespace {

// Number of shapes whose plans are kept. Plans without packings are small.
constexpr std::size_t kPlanned = 64;
// Limit of all packings, per active weight, and a least limit for small layers. Code takes 14 bytes, lists take 6.
constexpr std::int64_t kPackedBytesPerWeight = 64;
constexpr std::int64_t kLeastPackedBytes = std::int64_t{1} << 18;

}  // namespace

bool Conv::is_gathered() const {
  const ConvGeometry& g = options_.geometry;
  ConvGeometry plain = g;
  plain.stride_h = plain.stride_w = 1;
  return options_.layout == Layout::nchw && plain.is_pointwise() && !g.is_pointwise();
}

Conv::Problem Conv::problem_of(const Shape& shape, int threads, const OutputGrid* grid, bool may_generate) const {
  const Shape out = output_of(shape, grid);
  const ConvGeometry& g = options_.geometry;
  // In NCHW, the pixels that a strided 1x1 convolution reads are gathered first, so that no lane is idle at ends of
  // rows.
  const bool gathered = is_gathered();
  const bool flat = gathered || (g.is_pointwise() && grid == nullptr);
  const Shape read = gathered ? Shape{shape.n, shape.c, out.h, out.w} : shape;
  Problem problem;
  ConvTensors& t = problem.tensors;
  t.layout = options_.layout;
  t.units = options_.layout == Layout::nchw_n16 ? ceil_div(shape.n, kLanes) : shape.n;
  t.in_channels = shape.c;
  t.in_h = flat ? 1 : read.h;
  t.in_w = flat ? read.h * read.w : read.w;
  t.out_channels = out.c;
  t.out_h = flat ? 1 : out.h;
  t.out_w = flat ? out.h * out.w : out.w;
  t.out_step = grid == nullptr ? 1 : grid->step_x;
  t.out_row = grid == nullptr ? t.out_w : grid->step_y * grid->tensor_w;
  t.out_plane = grid == nullptr ? t.out_h * t.out_w : grid->tensor_h * grid->tensor_w;
  ConvGeometry geometry = g;
  if (gathered) geometry.stride_h = geometry.stride_w = 1;
  problem.tiling = {.geometry = geometry,
                    .dtype = options_.dtype,
                    .layout = options_.layout,
                    .form = form_,
                    .units = t.units,
                    .output_h = t.out_h,
                    .output_w = t.out_w,
                    .channels = shape.c / g.groups,
                    .rows = out.c / g.groups,
                    .density = density_,
                    .microarchitecture = options_.microarchitecture,
                    .threads = threads,
                    .may_list = !options_.form.has_value()};
  if (may_generate && problem.tiling.suits_code()) problem.tiling.form = WeightForm::code;
  return problem;
}

std::shared_ptr<const Conv::Plan> Conv::plan_for(const Shape& shape, int threads, const OutputGrid* grid,
                                                 ThreadPool* pool) const {
  const std::lock_guard lock(mutex_);
  const auto known = std::ranges::find_if(planned_, [&](const auto& planned) {
    return planned->shape == shape && planned->threads == threads &&
           (grid == nullptr ? !planned->grid.has_value() : planned->grid == *grid);
  });
  if (known != planned_.end()) {
    std::rotate(known, known + 1, planned_.end());
    return planned_.back();
  }
  std::shared_ptr<const Plan> plan;
  try {
    plan = make_plan(shape, threads, grid, may_generate_, pool);
  } catch (const CodeMemoryError&) {
    if (!may_generate_) throw;
    plan = make_plan(shape, threads, grid, false, pool);
  }
  if (planned_.size() == kPlanned) planned_.erase(planned_.begin());
  planned_.push_back(plan);
  drop_packings();
  return plan;
}

std::vector<std::shared_ptr<const ConvPacking>> Conv::packings() const {
  std::vector<std::shared_ptr<const ConvPacking>> packings;
  for (const auto& planned : std::views::reverse(planned_)) {
    if (std::ranges::find(packings, planned->packing) == packings.end()) packings.push_back(planned->packing);
  }
  return packings;
}

void Conv::drop_packings() const {
  const double weights = density_ * static_cast<double>(rows_ * columns_);
  const std::int64_t most =
      std::max(static_cast<std::int64_t>(weights * static_cast<double>(kPackedBytesPerWeight)), kLeastPackedBytes);
  std::int64_t bytes = 0;
  for (const auto& packing : packings()) {
    const bool is_latest = bytes == 0;
    bytes += packing->bytes();
    if (bytes <= most || is_latest) continue;
    std::erase_if(planned_, [&](const auto& planned) { return planned->packing == packing; });
  }
}

std::shared_ptr<const Conv::Plan> Conv::make_plan(const Shape& shape, int threads, const OutputGrid* grid,
                                                  bool may_generate, ThreadPool* pool) const {
  const Problem problem = problem_of(shape, threads, grid, may_generate);
  const Tiling tiling = choose_tiling(problem.tiling, kernels_);
  const std::int64_t band = band_rows(problem.tiling.rows, tiling.form, threads);
  PanelShape panel(problem.tiling.geometry, tiling.tile);
  if (tiling.form == WeightForm::code) {
    panel.make_channels_innermost(problem.tiling.reads_in_place()
                                      ? problem.tiling.channels * problem.tiling.geometry.groups
                                      : tiling.slice_channels);
  }
  const auto alike = std::ranges::find_if(planned_, [&](const auto& planned) {
    return planned->packing->tiling.packs_like(tiling) && planned->packing->band_rows == band;
  });
  const auto pack = [&] {
    const PanelShape packing_panel = tiling.packing_panel(problem.tiling.geometry);
    const ConvPacking* const other = weights_ ? nullptr : planned_.back()->packing.get();
    const bool is_listed = other != nullptr && has_lists(other->tiling.form) && has_lists(tiling.form);
    auto packing =
        is_listed ? std::make_shared<ConvPacking>(*other, problem.tiling, tiling, packing_panel, band, pool)
                  : std::make_shared<ConvPacking>(*locked_source(), problem.tiling, tiling, packing_panel, band, pool);
    ++packed_;
    if (options_.values) packing->keep_places();
    return packing;
  };
  static std::atomic<std::uint64_t> made{0};
  return std::make_shared<const Plan>(Plan{
      ++made, shape, threads, grid == nullptr ? std::nullopt : std::optional(*grid), problem, tiling, panel,
      panel.tap_bytes(),
      tiling.form == WeightForm::dense ? column_offsets(problem.tiling.geometry, panel, tiling.slice_channels)
                                       : std::vector<std::uint16_t>{},
      lanes_of_rotations(problem.tiling.geometry, tiling.tile), alike != planned_.end() ? (*alike)->packing : pack()});
}

Conv::SumOrder Conv::sum_order(const Shape& shape) const {
  if (!parts_.empty()) return parts_.front()->sum_order(shape);
  const Tiling tiling = choose_tiling(problem_of(shape, 1, nullptr, may_generate_).tiling, kernels_);
  // Code has whole units in any slice.
  return {tiling.form, tiling.form == WeightForm::code ? 0 : tiling.slice_channels};
}

std::shared_ptr<const SparseWeights> Conv::locked_source() const {
  if (weights_) return weights_;
  const Plan& plan = *planned_.back();
  return std::make_shared<const SparseWeights>(plan.packing->unpack(plan.problem.tiling));
}

std::shared_ptr<const SparseWeights> Conv::source() const {
  const std::lock_guard lock(mutex_);
  return locked_source();
}

bool Conv::release_source() const {
  if (!parts_.empty()) {
    // All, whatever the others did.
    return std::ranges::count_if(parts_, [](const auto& part) { return part->release_source(); }) > 0;
  }
  const std::lock_guard lock(mutex_);
  if (planned_.empty()) return false;
  weights_.reset();
  return true;
}

void Conv::prepare(const Shape& shape, int threads, ThreadPool* pool) const {
  for (const auto& part : parts_) part->prepare(shape, threads, pool);
  const Shape out = output_shape(shape);
  if (parts_.empty() && element_count(out, options_.layout) > 0) plan_for(shape, threads, nullptr, pool);
}

std::int64_t Conv::weight_bytes() const {
  std::int64_t bytes = static_cast<std::int64_t>(bias_.size() * sizeof(float));
  for (const auto& part : parts_) {
    bytes += part->weight_bytes();
    const std::lock_guard lock(part->mutex_);
    if (part->weights_) bytes += part->weights_->bytes();  // made for the part, not shared
  }
  const std::lock_guard lock(mutex_);
  for (const auto& packing : packings()) bytes += packing->bytes();
  return bytes;
}

std::int64_t Conv::times_packed() const {
  std::int64_t times = 0;
  for (const auto& part : parts_) times += part->times_packed();
  const std::lock_guard lock(mutex_);
  return times + packed_;
}

}  // namespace sift::cpu
