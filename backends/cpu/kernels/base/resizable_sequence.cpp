#include "base/resizable_sequence.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <ranges>
#include <stdexcept>

namespace sift::cpu {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

std::array<std::int64_t, 4> sizes_of(const Shape& shape) { return {shape.n, shape.c, shape.h, shape.w}; }

// Whether the same axes have one position, and none has none: what is broadcast and what is a view depends on that.
bool are_alike(const Shape& one, const Shape& other) {
  return std::ranges::equal(sizes_of(one), sizes_of(other),
                            [](std::int64_t a, std::int64_t b) { return a > 0 && b > 0 && (a == 1) == (b == 1); });
}

std::int64_t whole_lanes(std::int64_t floats) { return ceil_div(floats, kLanes) * kLanes; }

}  // namespace

ResizableSequence::ResizableSequence(std::vector<Tensor> tensors, std::vector<Call> calls,
                                     std::vector<std::pair<std::size_t, Shape>> inputs)
    : tensors_(std::move(tensors)),
      calls_(std::move(calls)),
      inputs_(std::move(inputs)),
      layouts_(tensors_.size(), Layout::nchw) {
  for (const Tensor& tensor : tensors_) {
    require(tensor.root < tensors_.size() && tensor.owner < tensors_.size(), "resizable sequence: no such tensor");
    const Tensor& root = tensors_[tensor.root];
    require(tensors_[root.root].root == tensor.root && root.start == 0, "resizable sequence: a root lies in another");
    require(tensors_[root.owner].owner == root.owner, "resizable sequence: an owner has another's memory");
  }
  for (const auto& input : inputs_) require(input.first < tensors_.size(), "resizable sequence: no such input");
  for (const Call& call : calls_) {
    const std::size_t none = tensors_.size();
    require(call.op != nullptr && call.in < none && call.out < none && call.second.value_or(0) < none &&
                call.third.value_or(0) < none,
            "resizable sequence: a call has no operator, or no such tensor");
    const Layout layout = call.op->output_layout();
    require((layout == Layout::nchw || layout == Layout::nchw_n16) && !call.op->takes_cache(),
            "resizable sequence: a call makes no floats");
    layouts_[call.out] = layout;
  }
  std::vector<Shape> shapes;
  for (const auto& input : inputs_) shapes.push_back(input.second);
  // Reads are as given here, and are compared with what the calls before them make.
  reshapes_.assign(calls_.size(), true);
  made_.tensors.resize(tensors_.size());
  for (const auto& [tensor, shape] : inputs_) made_.tensors[tensor] = shape;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    reshapes_[i] = made_.tensors[call.in] != call.shape;
    made_.tensors[call.out] = call.op->output_shape(call.shape);
  }
  const std::optional<Shapes> again = shapes_for(shapes, calls_);
  require(again.has_value(), "resizable sequence: calls do not fit together");
  made_ = *again;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    if (call.is_left_out) continue;
    const auto live = [&](std::size_t tensor) {
      const std::size_t root = tensors_[tensor].root;
      if (tensors_[root].array != Place::kScratch) return;
      const std::size_t owner = tensors_[root].owner;
      const auto known = std::ranges::find(lifetimes_, owner, &Lifetime::owner);
      if (known == lifetimes_.end()) {
        lifetimes_.push_back({owner, i, i});
      } else {
        known->last = i;
      }
    };
    live(call.out);
    live(call.in);
    if (call.second) live(*call.second);
    if (call.third) live(*call.third);
  }
  std::int64_t scratch_size = 0;
  require(places_for(made_, scratch_size).has_value(), "resizable sequence: tensors have no place");
}

std::optional<ResizableSequence::Shapes> ResizableSequence::shapes_for(std::span<const Shape> inputs,
                                                                       const std::vector<Call>& calls) const {
  if (inputs.size() != inputs_.size()) return std::nullopt;
  Shapes found{std::vector<Shape>(tensors_.size()), std::vector<Shape>(calls.size())};
  std::vector<bool> is_made(tensors_.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& [tensor, before] = inputs_[i];
    if (!are_alike(before, inputs[i]) || before.n != inputs[i].n) return std::nullopt;
    found.tensors[tensor] = inputs[i];
    is_made[tensor] = true;
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    if (!is_made[call.in]) return std::nullopt;
    const Shape read = found.tensors[call.in];
    // A reshaped tensor of another size may be reshaped in another way.
    if (reshapes_[i] && read != made_.tensors[call.in]) return std::nullopt;
    const Shape shape = found.calls[i] = reshapes_[i] ? call.shape : read;
    if (!are_alike(shape, call.shape)) return std::nullopt;
    const Shape made = call.op->output_shape(shape);
    if (element_count(shape, call.op->input_layout()) != element_count(read, layouts_[call.in])) return std::nullopt;
    const OtherSizes others = call.op->other_sizes(shape);
    const auto fits = [&](const std::optional<std::size_t>& tensor, std::int64_t size) {
      return !tensor || (is_made[*tensor] && element_count(found.tensors[*tensor], layouts_[*tensor]) == size);
    };
    if (!fits(call.second, others.second) || !fits(call.third, others.third)) return std::nullopt;
    // Several copies may write to one tensor.
    if (is_made[call.out] && found.tensors[call.out] != made) return std::nullopt;
    found.tensors[call.out] = made;
    is_made[call.out] = true;
  }
  return found;
}

// As `pack` in schedules/scratch.py: large ones first, each at the lowest offset at which it meets no other of its
// time.
std::optional<std::vector<Place>> ResizableSequence::places_for(const Shapes& shapes,
                                                                std::int64_t& scratch_size) const {
  const auto floats = [&](std::size_t tensor) { return element_count(shapes.tensors[tensor], layouts_[tensor]); };
  std::vector<std::size_t> order(lifetimes_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    const std::int64_t own = floats(lifetimes_[a].owner);
    const std::int64_t other = floats(lifetimes_[b].owner);
    return own != other ? own > other : lifetimes_[a].first < lifetimes_[b].first;
  });
  std::vector<std::int64_t> offsets(tensors_.size());
  std::vector<std::size_t> placed;
  scratch_size = 0;
  for (const std::size_t index : order) {
    const Lifetime& own = lifetimes_[index];
    const std::int64_t size = whole_lanes(floats(own.owner));
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    for (const std::size_t before : placed) {
      const Lifetime& other = lifetimes_[before];
      if (other.first > own.last || own.first > other.last) continue;
      taken.emplace_back(offsets[other.owner], offsets[other.owner] + whole_lanes(floats(other.owner)));
    }
    std::ranges::sort(taken);
    std::int64_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (begin - at >= size) break;
      at = std::max(at, end);
    }
    offsets[own.owner] = at;
    if (at > kMostElements) return std::nullopt;
    scratch_size = std::max(scratch_size, at + size);
    placed.push_back(index);
  }
  std::vector<Place> places(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    const Tensor& root = tensors_[tensor.root];
    const Shape& own = shapes.tensors[i];
    const Shape& whole = shapes.tensors[tensor.root];
    std::int64_t start = 0;
    if (tensor.root != i) {
      const bool is_range =
          own.n == whole.n && own.h == whole.h && own.w == whole.w && layouts_[i] == layouts_[tensor.root];
      if (!is_range || tensor.start < 0 || tensor.start > whole.c - own.c) return std::nullopt;
      start = tensor.start * element_count({own.n, 1, own.h, own.w}, layouts_[i]);
    }
    if (root.array == Place::kScratch) {
      if (floats(root.owner) != floats(tensor.root)) return std::nullopt;
      places[i] = {Place::kScratch, offsets[root.owner] + start};
    } else {
      places[i] = {root.array, start};
    }
  }
  return places;
}

std::optional<ResizableSequence::Resized> ResizableSequence::resized(
    std::span<const Shape> inputs, std::span<const std::pair<std::size_t, std::shared_ptr<const Op>>> replaced,
    std::vector<std::int64_t> array_sizes) const try {
  std::vector<Call> calls = calls_;
  for (const auto& [call, op] : replaced) {
    require(call < calls.size() && op != nullptr && op->output_layout() == calls[call].op->output_layout(),
            "resizable sequence: an operator takes the place of none");
    calls[call].op = op;
  }
  const std::optional<Shapes> shapes = shapes_for(inputs, calls);
  if (!shapes) return std::nullopt;
  std::int64_t scratch_size = 0;
  const std::optional<std::vector<Place>> places = places_for(*shapes, scratch_size);
  if (!places) return std::nullopt;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::int64_t array = tensors_[i].array;
    if (tensors_[i].root != i || array == Place::kScratch) continue;
    const auto number = static_cast<std::size_t>(array);
    if (array < 0 || number >= array_sizes.size()) return std::nullopt;
    if (element_count(shapes->tensors[i], layouts_[i]) != array_sizes[number]) return std::nullopt;
  }
  std::vector<SequenceStep> steps;
  std::vector<Shape> read;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    if (call.is_left_out) continue;
    const auto place = [&](const std::optional<std::size_t>& tensor) { return tensor ? (*places)[*tensor] : Place{}; };
    steps.push_back({.op = call.op,
                     .shape = shapes->calls[i],
                     .in = place(call.in),
                     .out = place(call.out),
                     .second = place(call.second),
                     .third = place(call.third),
                     .mask = {}});
    read.push_back(shapes->calls[i]);
  }
  return Resized{Sequence(std::move(steps), scratch_size, std::move(array_sizes)), std::move(read)};
} catch (const std::invalid_argument&) {
  return std::nullopt;  // an operator does not take a shape, which planning will say by name
}

}  // namespace sift::cpu
