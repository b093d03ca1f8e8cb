#include <algorithm>

#include "base/thread_pool.h"
#include "products/recurrent.h"
#include "products/recurrent_walk.h"

namespace sift::cpu {
namespace {

// Values of states below which waking the other threads costs more than they save.
constexpr std::int64_t kAlone = 1 << 11;

}  // namespace

// A first state, as the steps have it.
void Recurrent::receive(const Walk& walk, const float* given, float* state) const {
  const std::int64_t width = walk.plan.width;
  const std::int64_t count = walk.groups * hidden_ * width;
  if (given == nullptr) {
    std::fill_n(state, count, 0.0F);
    return;
  }
  // Of the first of its sequences.
  const float* const own = given + (walk.direction * options_.batch + walk.first * width) * hidden_;
  if (walk.x == nullptr) {
    std::copy_n(own, count, state);
    return;
  }
  for (std::int64_t group = 0; group < walk.groups; ++group) {
    const auto rows = static_cast<int>(std::min(kLanes, options_.batch - (walk.first + group) * kLanes));
    kernels_.interleave(own + group * kLanes * hidden_, hidden_, hidden_, rows, state + group * hidden_ * kLanes,
                        false);
  }
}

void Recurrent::run_cell(ThreadPool& pool, const Walk& walk, std::int64_t step, RecurrentStage stage) const {
  const std::int64_t width = walk.plan.width;
  const bool shares = walk.groups * hidden_ * width >= kAlone && pool.threads() > 1;
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
    const std::int64_t row = step * options_.batch + (walk.first + group) * width;
    const std::int64_t gate = walk.direction * gates * hidden_ + first;
    const std::int64_t own = (group * hidden_ + first) * width;
    RecurrentCellArgs args{};
    args.stage = stage;
    args.x_gate = args.product_gate = hidden_ * width;
    if (walk.x == nullptr) {
      args.x = walk.in + row * channels_ + gate * width;
    } else {
      float* const x = walk.x + (group * gates * hidden_ + first) * width;
      const auto rows = static_cast<int>(std::min(kLanes, options_.batch - (walk.first + group) * kLanes));
      if (stage != RecurrentStage::gru) {
        for (std::int64_t of = 0; of < gates; ++of) {
          kernels_.interleave(walk.in + row * channels_ + gate + of * hidden_, channels_, units, rows,
                              x + of * hidden_ * width, false);
        }
      }
      args.x = x;
    }
    args.product = walk.product + (group * product_rows + first) * width;
    args.candidate = walk.candidate + own;
    args.h = walk.h + own;
    args.c = walk.c + own;
    args.reset = walk.reset + own;
    args.count = units * width;
    if (stage == RecurrentStage::gru_reset) return cell_(args);
    if (options_.has_lengths) {
      run_ended(walk, step, group, args);
    } else {
      cell_(args);
    }
    std::int64_t channel = walk.direction * hidden_ + first;
    deliver(walk, args.h, group, row, channel, units);
    if (options_.has_lengths) {
      const std::int64_t begin = (walk.first + group) * width;
      for (std::int64_t i = begin; i < std::min(begin + width, options_.batch); ++i) {
        if (has_ended(walk, step, i)) clear(walk, step, i, channel, units);
      }
      channel += directions * hidden_;
      deliver(walk, args.h, group, row, channel, units);
    }
    if (options_.has_cell_states) deliver(walk, args.c, group, row, channel + directions * hidden_, units);
  };
  if (shares) {
    pool.parallel_for(walk.groups * pieces, body);
  } else {
    for (std::int64_t task = 0; task < walk.groups * pieces; ++task) body(task);
  }
}

bool Recurrent::has_ended(const Walk& walk, std::int64_t step, std::int64_t sequence) const {
  return static_cast<float>(step) >= walk.lengths[sequence];
}

// The step of a group, some of whose sequences may have ended, or not begun from behind: their states stay.
void Recurrent::run_ended(const Walk& walk, std::int64_t step, std::int64_t group, RecurrentCellArgs args) const {
  const std::int64_t width = walk.plan.width;
  const std::int64_t all = walk.groups * hidden_ * width;
  float* const h = walk.kept + (args.h - walk.h);
  float* const c = h + all;
  std::copy_n(args.h, args.count, h);
  std::copy_n(args.c, args.count, c);
  cell_(args);
  for (std::int64_t lane = 0; lane < width; ++lane) {
    const std::int64_t sequence = (walk.first + group) * width + lane;
    if (sequence < options_.batch && !has_ended(walk, step, sequence)) continue;
    for (std::int64_t i = lane; i < args.count; i += width) {
      args.h[i] = h[i];
      args.c[i] = c[i];
    }
  }
}

// `count` units of a group's state, to where the result has them.
void Recurrent::deliver(const Walk& walk, const float* state, std::int64_t group, std::int64_t row,
                        std::int64_t channel, std::int64_t count) const {
  float* const to = walk.out + row * results_;
  const std::int64_t width = walk.plan.width;
  if (walk.x == nullptr) {
    std::copy_n(state, count * width, to + channel * width);
    return;
  }
  const auto rows = static_cast<int>(std::min(kLanes, options_.batch - (walk.first + group) * kLanes));
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
