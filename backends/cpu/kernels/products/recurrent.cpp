#include "products/recurrent.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "products/recurrent_walk.h"

namespace sift::cpu {
namespace {

// Rows from which lanes that are partly idle are faster than products of few rows: of bits and values, and of lookups,
// by whether there are many weights. The number of threads does not decide: their results would differ in rounding.
constexpr std::int64_t kLanesPay[] = {3, 12};
constexpr std::int64_t kLanesPayLookup[] = {12, 16};
constexpr double kManyAbove = 0.5;
constexpr double kManyLookupsAbove = 0.25;
// Weights of a direction up to which a step is short beside the time in which two threads wait for each other. Measured
// with LSTMs of 64 and 96 sequences on two threads, both with sequences of their own, in another form of the products:
// 0.7 to 0.9 of the time up to 26,000 weights, and 1.0 from 52,000 on; on one thread, the form takes 0.95 to 1.2.
constexpr std::int64_t kMostShort = 40'000;

// Memory of the calling thread, which the others read and write while they work for it.
struct Scratch {
  AlignedBuffer states;
  AlignedBuffer first;
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

std::vector<std::int64_t> parts_of(RecurrentCell cell, std::int64_t hidden) {
  if (cell == RecurrentCell::gru) return {2 * hidden, hidden};
  return {gate_count(cell) * hidden};
}

RecurrentStage stage_of(RecurrentCell cell) {
  switch (cell) {
    case RecurrentCell::lstm: return RecurrentStage::lstm;
    case RecurrentCell::gru: return RecurrentStage::gru;
    case RecurrentCell::gru_linear: return RecurrentStage::gru_linear;
    case RecurrentCell::tanh: return RecurrentStage::tanh;
    case RecurrentCell::relu: break;
  }
  return RecurrentStage::relu;
}

std::shared_ptr<const RecurrentWeights> packed(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias,
                                               const RecurrentOptions& options, const KernelTable& kernels) {
  if (!weights) throw std::invalid_argument("recurrent: it has no weights");
  std::vector<std::int64_t> parts = parts_of(options.cell, weights->columns());
  return std::make_shared<const RecurrentWeights>(std::move(weights), std::move(bias),
                                                  static_cast<std::int64_t>(options.reversed.size()), std::move(parts),
                                                  kernels);
}

}  // namespace

Recurrent::Recurrent(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias,
                     const RecurrentOptions& options, const KernelTable& kernels)
    : options_(options),
      kernels_(kernels),
      cell_(recurrent_cell_of(kernels)),
      weights_(packed(std::move(weights), std::move(bias), options, kernels)) {
  if (options_.has_cell_states && options_.cell != RecurrentCell::lstm) {
    throw std::invalid_argument("recurrent: only lstm has cell states");
  }
  set_sizes();
}

Recurrent::Recurrent(const Recurrent& other, std::int64_t batch)
    : options_(other.options_), kernels_(other.kernels_), cell_(other.cell_), weights_(other.weights_) {
  options_.batch = batch;
  set_sizes();
}

void Recurrent::set_sizes() {
  const std::int64_t batch = options_.batch;
  if (batch < 1 || batch > kMostElements) throw std::invalid_argument("recurrent: the batch must be positive");
  hidden_ = weights_->hidden();
  channels_ = weights_->directions() * gate_count(options_.cell) * hidden_;
  results_ = weights_->directions() * hidden_ * (1 + options_.has_lengths + options_.has_cell_states);
}

Recurrent::Plan Recurrent::plan(int threads) const {
  const std::int64_t batch = options_.batch;
  const std::int64_t few = weights_->looks_up() ? kLanesPayLookup[weights_->density() > kManyLookupsAbove ? 1 : 0]
                                                : kLanesPay[weights_->density() > kManyAbove ? 1 : 0];
  const std::int64_t width = batch >= few ? kLanes : 1;
  const std::int64_t groups = ceil_div(batch, width);
  // Threads of a direction. Where each has sequences of its own, none waits for another in each step, and each reads
  // all weights, which its own cache should hold. A group of lanes more than others have takes as long as all of these.
  // Lookups round alike for any number of rows; bits and values do not, and lanes only in some forms. Where half of the
  // groups have another form than all, and steps are short, both halves have it for any number of threads.
  const bool fits = weights_->fit_cache();
  const auto are_alike = [&](std::int64_t some, std::int64_t others) {
    return weights_->sums_alike(some * width, others * width);
  };
  const bool is_short = weights_->nnz() <= kMostShort * weights_->directions();
  const bool is_halved = width > 1 && fits && is_short && groups % 2 == 0 && !are_alike(groups / 2, groups);
  const std::int64_t together = is_halved ? groups / 2 : groups;
  const std::int64_t own = std::max<std::int64_t>(threads / weights_->directions(), 1);
  const bool is_even = width == 1 ? weights_->looks_up() : groups % own == 0;
  const bool may_divide = own > 1 && groups >= own && is_even && fits;
  const bool divides = may_divide && (width == 1 || are_alike(groups / own, together));
  return {.width = width,
          .groups = groups,
          .parts = divides ? own : groups / together,
          .is_interleaved = width > 1 && input_layout() == Layout::nchw};
}

Layout Recurrent::input_layout() const { return options_.batch % kLanes == 0 ? Layout::nchw_n16 : Layout::nchw; }

Shape Recurrent::output_shape(const Shape& in) const {
  if (in.n % options_.batch != 0 || in.c != channels_ || in.h != 1 || in.w != 1) {
    throw std::invalid_argument("recurrent: the input must be [steps batch][directions gates hidden]");
  }
  return {in.n, results_, 1, 1};
}

OtherSizes Recurrent::other_sizes(const Shape&) const {
  const std::int64_t floats = element_count({weights_->directions() * options_.batch, hidden_, 1, 1}, input_layout());
  return {.second = floats,
          .third = options_.cell == RecurrentCell::lstm ? floats : OtherSizes::kNotTaken,
          .mask = options_.has_lengths ? options_.batch : OtherSizes::kNotTaken};
}

void Recurrent::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  output_shape(shape);
  if (shape.n == 0) return;
  for (std::int64_t i = 0; options_.has_lengths && i < options_.batch; ++i) {
    if (others.mask == nullptr ||
        !(others.mask[i] >= 0 && others.mask[i] <= static_cast<float>(shape.n / options_.batch))) {
      throw std::invalid_argument("recurrent: the length of a sequence is not between 0 and the number of steps");
    }
  }
  Others own = others;
  if (weights_->directions() > 1 && others.second == out) {
    // The result may lie where the first states do. One direction must not write what the other has yet to read; the
    // sequences of one, which threads may divide, have their states in the same places.
    const auto count = static_cast<std::size_t>(other_sizes(shape).second);
    float* const first = thread_scratch().first.floats(count);
    std::copy_n(others.second, count, first);
    own.second = first;
  }
  run_directions(pool, shape, in, own, out);
  // What the products were packed from is in `weights_` as well.
  weights_->release_sources();
}

void Recurrent::run_directions(ThreadPool& pool, const Shape& shape, const float* in, const Others& others,
                               float* out) const {
  const std::int64_t directions = weights_->directions();
  const Plan plan = this->plan(pool.threads());
  const auto run_part = [&](ThreadPool& threads, std::int64_t number) {
    Walk walk{};
    walk.plan = plan;
    walk.direction = number / plan.parts;
    walk.first = number % plan.parts * plan.groups / plan.parts;
    walk.groups = (number % plan.parts + 1) * plan.groups / plan.parts - walk.first;
    walk.in = in;
    walk.out = out;
    run_groups(threads, walk, shape, others);
  };
  if (directions * plan.parts > 1 && pool.threads() > 1) {
    // They do not wait for each other, as threads that share the products of a step would.
    static ThreadPool alone(1);
    return pool.parallel_for(directions * plan.parts, [&](std::int64_t number) { run_part(alone, number); });
  }
  for (std::int64_t number = 0; number < directions * plan.parts; ++number) run_part(pool, number);
}

void Recurrent::run_groups(ThreadPool& pool, Walk walk, const Shape& shape, const Others& others) const {
  const std::int64_t steps = shape.n / options_.batch;
  const std::int64_t state = ceil_div(walk.groups * hidden_ * walk.plan.width, kLanes) * kLanes;
  const std::int64_t gates = gate_count(options_.cell);
  const bool is_apart = walk.plan.is_interleaved;
  const std::int64_t states_kept = 4 + (options_.has_lengths ? 2 : 0) + gates * (is_apart ? 2 : 1);
  float* at = thread_scratch().states.floats(static_cast<std::size_t>(state * states_kept));
  const auto next = [&](std::int64_t states) { return std::exchange(at, at + states * state); };
  walk.h = next(1);
  walk.c = next(1);
  walk.reset = next(1);
  walk.candidate = next(1);
  walk.product = next(gates);
  if (is_apart) walk.x = next(gates);
  if (options_.has_lengths) {
    walk.kept = next(2);
    walk.lengths = others.mask;
  }
  receive(walk, others.second, walk.h);
  receive(walk, others.third, walk.c);
  if (options_.has_lengths) clear_unused(walk);
  const Shape states{walk.groups * walk.plan.width, hidden_, 1, 1};
  const Layout layout = walk.plan.width > 1 ? Layout::nchw_n16 : Layout::nchw;
  const auto products = weights_->products(walk.direction, layout);
  const bool is_reversed = options_.reversed[static_cast<std::size_t>(walk.direction)];
  for (std::int64_t i = 0; i < steps; ++i) {
    const std::int64_t step = is_reversed ? steps - 1 - i : i;
    products[0]->run(pool, states, walk.h, {}, walk.product);
    if (options_.cell == RecurrentCell::gru) {
      run_cell(pool, walk, step, RecurrentStage::gru_reset);
      products[1]->run(pool, states, walk.reset, {}, walk.candidate);
    }
    run_cell(pool, walk, step, stage_of(options_.cell));
  }
}

// A sequence without steps has no state either, as in onnxruntime.
void Recurrent::clear_unused(const Walk& walk) const {
  const std::int64_t width = walk.plan.width;
  const std::int64_t end = std::min((walk.first + walk.groups) * width, options_.batch);
  for (std::int64_t sequence = walk.first * width; sequence < end; ++sequence) {
    if (walk.lengths[sequence] > 0) continue;
    const std::int64_t own = sequence - walk.first * width;
    for (float* const state : {walk.h, walk.c}) {
      float* const to = state + own / width * hidden_ * width + own % width;
      for (std::int64_t unit = 0; unit < hidden_; ++unit) to[unit * width] = 0;
    }
  }
}

}  // namespace sift::cpu
