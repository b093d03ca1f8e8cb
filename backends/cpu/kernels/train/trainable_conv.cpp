#include "train/trainable_conv.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/thread_pool.h"
#include "train/input_gradient.h"

namespace sift::cpu {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("trainable convolution: ") + what);
}

ConvOptions options_of(const ConvGeometry& geometry, std::shared_ptr<const ChangingValues> values) {
  ConvOptions options;
  options.geometry = geometry;
  options.layout = Layout::nchw_n16;
  options.values = std::move(values);
  return options;
}

void fill_zeros(ThreadPool& pool, float* values, std::int64_t count) {
  constexpr std::int64_t kPiece = 1 << 16;
  pool.parallel_for(ceil_div(count, kPiece), [&](std::int64_t i) {
    std::fill_n(values + i * kPiece, std::min(kPiece, count - i * kPiece), 0.0F);
  });
}

}  // namespace

TrainableConv::TrainableConv(std::int64_t rows, std::int64_t columns, std::span<const std::int64_t> indices,
                             std::span<const std::int64_t> places, const ConvGeometry& geometry,
                             const KernelTable& kernels)
    : geometry_(geometry),
      kernels_(kernels),
      values_(std::make_shared<ChangingValues>(indices.size())),
      weights_(std::make_shared<const SparseWeights>(weights_of_places(rows, columns, indices, places))),
      forward_(weights_, {}, options_of(geometry, values_), kernels) {
  require(!indices.empty(), "no weight is active; leave the layer out, or keep at least one weight");
}

void TrainableConv::require_values() const { require(values_->version() > 0, "update must set the values first"); }

void TrainableConv::forward(ThreadPool& pool, const Shape& shape, const float* x, const float* bias, float* out) const {
  require_values();
  forward_.run(pool, shape, {.in = x, .bias = bias, .out = out});
}

void TrainableConv::input_gradient(ThreadPool& pool, const Shape& shape, const float* dy, float* dx) const {
  require_values();
  const Shape in = output_shape(shape);
  const std::int64_t count = element_count(shape, Layout::nchw_n16);
  if (count == 0) return;
  const bool is_empty = element_count(in, Layout::nchw_n16) == 0;
  const auto phase_count = static_cast<std::int64_t>(phases().size());
  // Pixels of the other phases are read through no tap.
  if (is_empty || phase_count < geometry_.stride_h * geometry_.stride_w) fill_zeros(pool, dx, count);
  if (is_empty) return;
  for (const Phase& phase : phases()) {
    OutputGrid grid = phase.grid;
    grid.tensor_h = shape.h;
    grid.tensor_w = shape.w;
    phase.conv->run(pool, in, {.in = dy, .out = dx, .grid = is_strided() ? &grid : nullptr});
    // The transposed weights take eight bytes each, and what is packed of them says as much.
    phase.conv->release_source();
  }
}

const std::vector<TrainableConv::Phase>& TrainableConv::phases() const {
  const std::lock_guard lock(mutex_);
  if (phases_.empty()) {
    std::vector<Phase> phases;
    for (GradientPhase& phase : gradient_phases(*weights_, geometry_)) {
      auto conv = std::make_unique<const Conv>(std::make_shared<const SparseWeights>(std::move(phase.weights)),
                                               std::vector<float>{}, options_of(phase.geometry, values_), kernels_);
      phases.push_back({phase.grid, std::move(conv)});
    }
    phases_ = std::move(phases);
  }
  return phases_;
}

std::int64_t TrainableConv::bytes() const {
  std::int64_t sum = values_->bytes() + weights_->bytes() + forward_.weight_bytes();
  const std::lock_guard lock(mutex_);
  for (const Phase& phase : phases_) sum += phase.conv->weight_bytes();
  return sum;
}

std::vector<Conv::Description> TrainableConv::describe_input_gradient(const Shape& shape, int threads) const {
  std::vector<Conv::Description> descriptions;
  for (const Phase& phase : phases()) {
    OutputGrid grid = phase.grid;
    grid.tensor_h = shape.h;
    grid.tensor_w = shape.w;
    if (is_strided() && grid.rows() * grid.columns() == 0) continue;
    descriptions.push_back(phase.conv->describe(output_shape(shape), threads, is_strided() ? &grid : nullptr));
  }
  return descriptions;
}

}  // namespace sift::cpu
