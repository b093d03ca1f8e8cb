#include "products/recurrent.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// Rows from which lanes that are partly idle are faster than products of few rows: of bits and values, and of lookups,
// by whether there are many weights.
constexpr std::int64_t kLanesPay[] = {3, 12};
constexpr std::int64_t kLanesPayLookup[] = {8, 12};
constexpr double kManyAbove = 0.5;
constexpr double kManyLookupsAbove = 0.25;
// Values of states below which waking the other threads costs more than they save.
constexpr std::int64_t kAlone = 1 << 11;

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

// One direction on its way through the steps.
struct Recurrent::Walk {
  std::int64_t direction;
  const float* in;
  float* out;
  float* h;
  float* c;
  float* reset;
  float* product;
  float* candidate;
  float* x;     // of inputs in planes, some gates with their rows in lanes
  float* kept;  // with lengths: states before the step
  const float* lengths;
};

Recurrent::Recurrent(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias,
                     const RecurrentOptions& options, const KernelTable& kernels)
    : options_(options),
      kernels_(kernels),
      cell_(recurrent_cell_of(kernels)),
      weights_(packed(std::move(weights), std::move(bias), options, kernels)) {
  if (options_.has_cell_states && options_.cell != RecurrentCell::lstm) {
    throw std::invalid_argument("recurrent: only lstm has cell states");
  }
  plan();
}

Recurrent::Recurrent(const Recurrent& other, std::int64_t batch)
    : options_(other.options_), kernels_(other.kernels_), cell_(other.cell_), weights_(other.weights_) {
  options_.batch = batch;
  plan();
}

void Recurrent::plan() {
  const std::int64_t batch = options_.batch;
  if (batch < 1 || batch > kMostElements) throw std::invalid_argument("recurrent: the batch must be positive");
  hidden_ = weights_->hidden();
  channels_ = weights_->directions() * gate_count(options_.cell) * hidden_;
  results_ = weights_->directions() * hidden_ * (1 + options_.has_lengths + options_.has_cell_states);
  const std::int64_t few = weights_->looks_up() ? kLanesPayLookup[weights_->density() > kManyLookupsAbove ? 1 : 0]
                                                : kLanesPay[weights_->density() > kManyAbove ? 1 : 0];
  width_ = batch >= few ? kLanes : 1;
  groups_ = ceil_div(batch, width_);
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
    // The result may lie where the first states do. One direction must not write what the other has yet to read.
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
  if (directions > 1 && pool.threads() > 1) {
    // They do not wait for each other, as threads that share the products of a step would.
    static ThreadPool alone(1);
    return pool.parallel_for(directions,
                             [&](std::int64_t direction) { run_direction(alone, direction, shape, in, others, out); });
  }
  for (std::int64_t direction = 0; direction < directions; ++direction) {
    run_direction(pool, direction, shape, in, others, out);
  }
}

void Recurrent::run_direction(ThreadPool& pool, std::int64_t direction, const Shape& shape, const float* in,
                              const Others& others, float* out) const {
  const std::int64_t steps = shape.n / options_.batch;
  const std::int64_t state = ceil_div(groups_ * hidden_ * width_, kLanes) * kLanes;
  const std::int64_t gates = gate_count(options_.cell);
  const bool is_apart = is_interleaved();
  const std::int64_t states_kept = 4 + (options_.has_lengths ? 2 : 0) + gates * (is_apart ? 2 : 1);
  float* at = thread_scratch().states.floats(static_cast<std::size_t>(state * states_kept));
  const auto next = [&](std::int64_t states) { return std::exchange(at, at + states * state); };
  Walk walk{};
  walk.direction = direction;
  walk.in = in;
  walk.out = out;
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
  const Shape states{groups_ * width_, hidden_, 1, 1};
  const auto products = weights_->products(direction, width_ > 1 ? Layout::nchw_n16 : Layout::nchw);
  const bool is_reversed = options_.reversed[static_cast<std::size_t>(direction)];
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

// A first state, as the steps have it.
void Recurrent::receive(const Walk& walk, const float* given, float* state) const {
  const std::int64_t count = groups_ * hidden_ * width_;
  if (given == nullptr) {
    std::fill_n(state, count, 0.0F);
    return;
  }
  const std::int64_t batch = options_.batch;
  const float* const own = given + walk.direction * batch * hidden_;
  if (walk.x == nullptr) {
    std::copy_n(own, count, state);
    return;
  }
  for (std::int64_t group = 0; group < groups_; ++group) {
    const auto rows = static_cast<int>(std::min(kLanes, batch - group * kLanes));
    kernels_.interleave(own + group * kLanes * hidden_, hidden_, hidden_, rows, state + group * hidden_ * kLanes,
                        false);
  }
}

void Recurrent::run_cell(ThreadPool& pool, const Walk& walk, std::int64_t step, RecurrentStage stage) const {
  const bool shares = groups_ * hidden_ * width_ >= kAlone && pool.threads() > 1;
  // Of units; interleaving takes whole sixteens.
  const std::int64_t piece = shares ? ceil_div(ceil_div(hidden_, pool.threads()), kLanes) * kLanes : hidden_;
  const std::int64_t pieces = ceil_div(hidden_, piece);
  const std::int64_t gates = gate_count(options_.cell);
  // Of the product of all gates, or of those before the candidate's.
  const std::int64_t product_rows = (options_.cell == RecurrentCell::gru ? 2 : gates) * hidden_;
  const std::int64_t directions = weights_->directions();
  const auto body = [&](std::int64_t task) {
    const std::int64_t group = task / pieces;
    const std::int64_t first = task % pieces * piece;
    const std::int64_t units = std::min(piece, hidden_ - first);
    // Rows of the batch before this group, and of the array.
    const std::int64_t row = step * options_.batch + group * width_;
    const std::int64_t gate = walk.direction * gates * hidden_ + first;
    const std::int64_t own = (group * hidden_ + first) * width_;
    RecurrentCellArgs args{};
    args.stage = stage;
    args.x_gate = args.product_gate = hidden_ * width_;
    if (walk.x == nullptr) {
      args.x = walk.in + row * channels_ + gate * width_;
    } else {
      float* const x = walk.x + (group * gates * hidden_ + first) * width_;
      const auto rows = static_cast<int>(std::min(kLanes, options_.batch - group * kLanes));
      if (stage != RecurrentStage::gru) {
        for (std::int64_t of = 0; of < gates; ++of) {
          kernels_.interleave(walk.in + row * channels_ + gate + of * hidden_, channels_, units, rows,
                              x + of * hidden_ * width_, false);
        }
      }
      args.x = x;
    }
    args.product = walk.product + (group * product_rows + first) * width_;
    args.candidate = walk.candidate + own;
    args.h = walk.h + own;
    args.c = walk.c + own;
    args.reset = walk.reset + own;
    args.count = units * width_;
    if (stage == RecurrentStage::gru_reset) return cell_(args);
    if (options_.has_lengths) {
      run_ended(walk, step, group, args);
    } else {
      cell_(args);
    }
    std::int64_t channel = walk.direction * hidden_ + first;
    deliver(walk, args.h, group, row, channel, units);
    if (options_.has_lengths) {
      for (std::int64_t i = group * width_; i < std::min((group + 1) * width_, options_.batch); ++i) {
        if (has_ended(walk, step, i)) clear(walk, step, i, channel, units);
      }
      channel += directions * hidden_;
      deliver(walk, args.h, group, row, channel, units);
    }
    if (options_.has_cell_states) deliver(walk, args.c, group, row, channel + directions * hidden_, units);
  };
  if (shares) {
    pool.parallel_for(groups_ * pieces, body);
  } else {
    for (std::int64_t task = 0; task < groups_ * pieces; ++task) body(task);
  }
}

bool Recurrent::has_ended(const Walk& walk, std::int64_t step, std::int64_t sequence) const {
  return static_cast<float>(step) >= walk.lengths[sequence];
}

// The step of a group, some of whose sequences may have ended, or not begun from behind: their states stay.
void Recurrent::run_ended(const Walk& walk, std::int64_t step, std::int64_t group, RecurrentCellArgs args) const {
  const std::int64_t all = groups_ * hidden_ * width_;
  float* const h = walk.kept + (args.h - walk.h);
  float* const c = h + all;
  std::copy_n(args.h, args.count, h);
  std::copy_n(args.c, args.count, c);
  cell_(args);
  for (std::int64_t lane = 0; lane < width_; ++lane) {
    const std::int64_t sequence = group * width_ + lane;
    if (sequence < options_.batch && !has_ended(walk, step, sequence)) continue;
    for (std::int64_t i = lane; i < args.count; i += width_) {
      args.h[i] = h[i];
      args.c[i] = c[i];
    }
  }
}

// `count` units of a group's state, to where the result has them.
void Recurrent::deliver(const Walk& walk, const float* state, std::int64_t group, std::int64_t row,
                        std::int64_t channel, std::int64_t count) const {
  float* const to = walk.out + row * results_;
  if (walk.x == nullptr) {
    std::copy_n(state, count * width_, to + channel * width_);
    return;
  }
  const auto rows = static_cast<int>(std::min(kLanes, options_.batch - group * kLanes));
  kernels_.deinterleave(state, results_, count, rows, to + channel, false);
}

// What the result has of a sequence that has ended.
void Recurrent::clear(const Walk& walk, std::int64_t step, std::int64_t sequence, std::int64_t channel,
                      std::int64_t count) const {
  const bool in_lanes = input_layout() == Layout::nchw_n16;
  const std::int64_t width = in_lanes ? kLanes : 1;
  const std::int64_t row = step * options_.batch + sequence;
  float* const to = walk.out + row / width * width * results_ + row % width + channel * width;
  for (std::int64_t i = 0; i < count; ++i) to[i * width] = 0;
}

}  // namespace sift::cpu
