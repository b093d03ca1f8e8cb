#include "base/sequence.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// Floats of a place that an operand takes.
struct Span {
  Place place;
  std::int64_t size;

  bool overlaps(const Span& other) const {
    return place.array == other.place.array && place.offset < other.place.offset + other.size &&
           other.place.offset < place.offset + size;
  }
};

Span output_of(const SequenceStep& step) {
  return {step.out, element_count(step.op->output_shape(step.shape), step.op->output_layout())};
}

Span second_of(const SequenceStep& step) { return {step.second, step.op->other_sizes(step.shape).second}; }

}  // namespace

Workspace::Loan Workspace::borrow() {
  std::unique_ptr<AlignedBuffer> buffer;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      buffer = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!buffer) buffer = std::make_unique<AlignedBuffer>();
  return {*this, std::move(buffer)};
}

void Workspace::release_idle() {
  std::vector<std::unique_ptr<AlignedBuffer>> idle;
  const std::lock_guard lock(mutex_);
  idle.swap(free_);
}

Workspace::Loan::~Loan() {
  const std::lock_guard lock(owner_.mutex_);
  owner_.free_.push_back(std::move(buffer_));
}

Sequence::Sequence(std::vector<SequenceStep> steps, std::int64_t scratch_size, std::vector<std::int64_t> array_sizes)
    : steps_(std::move(steps)),
      scratch_size_(scratch_size),
      array_sizes_(std::move(array_sizes)),
      writes_(array_sizes_.size()) {
  for (const SequenceStep& step : steps_) {
    if (!step.op) throw std::invalid_argument("sequence: a step has no operator");
    if (step.in.array == Place::kNowhere || step.out.array == Place::kNowhere) {
      throw std::invalid_argument("sequence: a step has no input or no output");
    }
    cache_count_ += step.op->takes_cache() ? 1 : 0;
    const Layout layout = step.op->output_layout();
    check(step.in, element_count(step.shape, step.op->input_layout()), step.op->input_layout());
    check(step.out, element_count(step.op->output_shape(step.shape), layout), layout);
    if (step.out.array >= 0) writes_[static_cast<std::size_t>(step.out.array)] = true;
    const OtherSizes sizes = step.op->other_sizes(step.shape);
    check_other(step.second, sizes.second, step.op->second_layout());
    check_other(step.third, sizes.third, layout);
    check_other(step.mask, sizes.mask, Layout::nchw);
  }
  find_shared();
}

// Steps one after the other that read the same input, where none reads or overwrites what another of them writes.
void Sequence::find_shared() {
  together_.assign(steps_.size(), 1);
  for (std::size_t first = 0; first < steps_.size(); first += together_[first]) {
    std::size_t& count = together_[first];
    while (count < kMostSharedRuns && first + count < steps_.size() && joins(first, first + count)) ++count;
  }
}

bool Sequence::joins(std::size_t first, std::size_t step) const {
  const SequenceStep& own = steps_[step];
  const SequenceStep& head = steps_[first];
  const bool same_input = own.in.array == head.in.array && own.in.offset == head.in.offset && own.shape == head.shape;
  if (!same_input || !head.op->shares_input(*own.op)) return false;
  const Span input{own.in, element_count(own.shape, own.op->input_layout())};
  const auto is_apart = [&](const SequenceStep& one, const SequenceStep& other) {
    const Span out = output_of(one);
    const bool reads = other.second.array != Place::kNowhere && out.overlaps(second_of(other));
    return !out.overlaps(output_of(other)) && !reads;
  };
  // Two arrays of the caller may be one.
  const auto in_scratch = [](const Place& place) { return place.array < 0; };
  if (!in_scratch(own.out) || !in_scratch(own.second) || output_of(own).overlaps(input)) return false;
  for (std::size_t i = first; i < step; ++i) {
    const SequenceStep& before = steps_[i];
    if (!in_scratch(before.out) || !in_scratch(before.second) || output_of(before).overlaps(input)) return false;
    if (!is_apart(own, before) || !is_apart(before, own)) return false;
  }
  return true;
}

Sequence Sequence::resized(std::int64_t rows,
                           std::span<const std::pair<std::size_t, std::shared_ptr<const Op>>> replaced,
                           std::vector<std::int64_t> array_sizes) const {
  const auto require = [](bool holds) {
    if (!holds) throw std::invalid_argument("sequence: its tensors are not matrices of one number of rows");
  };
  require(!steps_.empty() && rows > 0);
  const std::int64_t before = steps_.front().shape.n;
  require(before > 0);
  const std::int64_t blocks_before = ceil_div(before, kLanes);
  const std::int64_t blocks = ceil_div(rows, kLanes);
  // Blocks of all tensors lie one after the other: places are as many times as far from the first.
  const auto moved = [&](Place place, Layout layout) {
    if (place.array == Place::kScratch) {
      require(is_aligned_layout(layout) && place.offset % blocks_before == 0);
      place.offset = place.offset / blocks_before * blocks;
    } else {
      require(place.offset == 0);
    }
    return place;
  };
  std::vector<SequenceStep> steps = steps_;
  for (SequenceStep& step : steps) {
    require(step.shape.n == before && step.shape.h * step.shape.w == 1);
    const Layout layout = step.op->output_layout();
    step.in = moved(step.in, step.op->input_layout());
    step.out = moved(step.out, layout);
    for (Place* const other : {&step.second, &step.third}) {
      if (other->array != Place::kNowhere) *other = moved(*other, layout);
    }
    require(step.mask.array != Place::kScratch && step.mask.offset == 0);
    step.shape.n = rows;
  }
  for (const auto& [step, op] : replaced) {
    require(step < steps.size() && op != nullptr);
    steps[step].op = op;
  }
  require(scratch_size_ % blocks_before == 0);
  return {std::move(steps), scratch_size_ / blocks_before * blocks, std::move(array_sizes)};
}

Sequence Sequence::chained(std::span<const Part> parts, std::int64_t passed, std::vector<std::int64_t> array_sizes) {
  // Each part may write to all that the others had but what they have passed on.
  const std::int64_t own = ceil_div(passed, kLanes) * kLanes;
  std::int64_t scratch_size = 0;
  std::vector<SequenceStep> steps;
  for (const Part& part : parts) {
    if (part.sequence == nullptr || part.arrays.size() != part.sequence->array_sizes_.size()) {
      throw std::invalid_argument("sequence: a place for each array of a part");
    }
    const auto moved = [&](Place place) {
      if (place.array == Place::kNowhere) return place;
      if (place.array == Place::kScratch) return Place{Place::kScratch, own + place.offset};
      const Place& base = part.arrays[static_cast<std::size_t>(place.array)];
      return Place{base.array, base.offset + place.offset};
    };
    scratch_size = std::max(scratch_size, part.sequence->scratch_size_);
    for (const SequenceStep& step : part.sequence->steps_) {
      steps.push_back({.op = step.op,
                       .shape = step.shape,
                       .in = moved(step.in),
                       .out = moved(step.out),
                       .second = moved(step.second),
                       .third = moved(step.third),
                       .mask = moved(step.mask)});
    }
  }
  return {std::move(steps), own + scratch_size, std::move(array_sizes)};
}

void Sequence::check(const Place& place, std::int64_t size, Layout layout) {
  const bool scratch = place.array == Place::kScratch;
  if (!scratch && (place.array < 0 || place.array >= static_cast<std::int64_t>(array_sizes_.size()))) {
    throw std::invalid_argument("sequence: there is no such array");
  }
  const std::int64_t room = scratch ? scratch_size_ : array_sizes_[static_cast<std::size_t>(place.array)];
  if (place.offset < 0 || size > room - place.offset) {
    throw std::invalid_argument("sequence: a tensor does not fit in its place");
  }
  // In planes, a tensor may begin at any channel of another.
  if (!is_aligned_layout(layout)) return;
  if (scratch && place.offset % kLanes != 0) throw std::invalid_argument("sequence: a tensor is not aligned");
  if (!scratch) aligned_.push_back(place);
}

void Sequence::check_other(const Place& place, std::int64_t size, Layout layout) {
  if (place.array == Place::kNowhere) return;
  if (size == OtherSizes::kNotTaken)
    throw std::invalid_argument("sequence: a step has an operand that its operator does not take");
  check(place, size, layout);
}

void Sequence::run(ThreadPool& pool, Workspace& workspace, std::span<float* const> arrays, std::span<double> seconds,
                   std::span<const KeyValueCache> caches) const {
  pool.in_turn([&](Turns::Turn* turn) { run_steps(pool, workspace, arrays, seconds, caches, turn); });
}

// The tiles of many layers are chosen for a new shape, which takes as long as running small ones.
void Sequence::prepare(ThreadPool& pool) const {
  const int threads = pool.threads();
  if (prepared_->exchange(threads, std::memory_order_relaxed) == threads) return;
  pool.parallel_for(std::ssize(steps_), [&](std::int64_t i) {
    const SequenceStep& step = steps_[static_cast<std::size_t>(i)];
    step.op->prepare(step.shape, threads, &pool);
  });
}

void Sequence::run_steps(ThreadPool& pool, Workspace& workspace, std::span<float* const> arrays,
                         std::span<double> seconds, std::span<const KeyValueCache> caches, Turns::Turn* turn) const {
  if (caches.size() != cache_count_) {
    throw std::invalid_argument("sequence: " + std::to_string(cache_count_) + " steps take a cache, and there are " +
                                std::to_string(caches.size()));
  }
  for (const Place& place : aligned_) {
    const float* const tensor = arrays[static_cast<std::size_t>(place.array)] + place.offset;
    if (reinterpret_cast<std::uintptr_t>(tensor) % 64 != 0) {
      throw std::invalid_argument("sequence: a tensor in images16 or quads must be aligned to 64 bytes; in array " +
                                  std::to_string(place.array) + " it is not");
    }
  }
  prepare(pool);
  using Clock = std::chrono::steady_clock;
  Workspace::Loan loan = workspace.borrow();
  // Of an empty batch too, operands have an address: operators take none for an operand that is missing.
  float* const scratch = loan.buffer().floats(static_cast<std::size_t>(std::max<std::int64_t>(scratch_size_, 1)));
  const auto at = [&](const Place& place) -> float* {
    if (place.array == Place::kNowhere) return nullptr;
    return (place.array == Place::kScratch ? scratch : arrays[static_cast<std::size_t>(place.array)]) + place.offset;
  };
  auto cache = caches.begin();
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const SequenceStep& step = steps_[i];
    if (turn != nullptr) turn->pass_if_long();
    if (seconds.empty() && together_[i] > 1) {
      std::array<SharedRun, kMostSharedRuns> runs;
      for (std::size_t k = 0; k < together_[i]; ++k) {
        const SequenceStep& own = steps_[i + k];
        runs[k] = {own.op.get(), at(own.second), at(own.out)};
      }
      step.op->run_shared(pool, step.shape, at(step.in), std::span(runs).first(together_[i]));
      i += together_[i] - 1;
      continue;
    }
    const Clock::time_point start = seconds.empty() ? Clock::time_point{} : Clock::now();
    const Others others{at(step.second), at(step.third), at(step.mask)};
    if (step.op->takes_cache()) {
      step.op->run_with_cache(pool, step.shape, at(step.in), others, *cache++, at(step.out));
    } else {
      step.op->run(pool, step.shape, at(step.in), others, at(step.out));
    }
    if (!seconds.empty()) seconds[i] += std::chrono::duration<double>(Clock::now() - start).count();
  }
}

void Sequence::run_each(ThreadPool& pool, Workspace& workspace, std::span<const std::vector<float*>> arrays) const {
  static ThreadPool alone(1);
  pool.in_turn([&](Turns::Turn*) {
    pool.parallel_for(static_cast<std::int64_t>(arrays.size()), [&](std::int64_t i) {
      run_steps(alone, workspace, arrays[static_cast<std::size_t>(i)], {}, {}, nullptr);
    });
  });
}

}  // namespace sift::cpu
