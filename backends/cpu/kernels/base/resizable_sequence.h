// A sequence of operators on images, for images of any size: places follow from the shapes of its inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/op.h"
#include "base/sequence.h"

namespace sift::cpu {

class ResizableSequence {
 public:
  struct Tensor {
    std::int64_t array;  // of the caller, or Place::kScratch
    std::size_t root;    // the tensor that it lies in, perhaps itself
    std::int64_t start;  // the first channel that it has there
    std::size_t owner;   // of roots in scratch memory: the root whose memory it has, perhaps its own
  };

  struct Call {
    std::shared_ptr<const Op> op;
    Shape shape;  // of the operand
    std::size_t in;
    std::optional<std::size_t> second;
    std::optional<std::size_t> third;
    std::size_t out;
    bool is_left_out;  // a copy whose operand lies within its result, or the reverse
  };

  // `inputs`: tensors that no call makes, with their shapes, in order. All tensors hold floats, in NCHW or NCHWn16.
  // Throws std::invalid_argument if calls do not fit together, or no other size could be derived from these.
  ResizableSequence(std::vector<Tensor> tensors, std::vector<Call> calls,
                    std::vector<std::pair<std::size_t, Shape>> inputs);

  struct Resized {
    Sequence sequence;
    std::vector<Shape> shapes;  // of the operands of the steps
  };

  // The sequence for inputs of other shapes, and `array_sizes` floats in the caller's arrays. Operators that depend on
  // a size are replaced, given as call and operator. None where these shapes might take other operators or places: an
  // axis that had one position has more or the reverse, what was a reshaped tensor has another size, two tensors that
  // shared memory differ, or an operator does not take its operand.
  std::optional<Resized> resized(std::span<const Shape> inputs,
                                 std::span<const std::pair<std::size_t, std::shared_ptr<const Op>>> replaced,
                                 std::vector<std::int64_t> array_sizes) const;

 private:
  struct Shapes {
    std::vector<Shape> tensors;
    std::vector<Shape> calls;
  };

  std::optional<Shapes> shapes_for(std::span<const Shape> inputs, const std::vector<Call>& calls) const;
  std::optional<std::vector<Place>> places_for(const Shapes& shapes, std::int64_t& scratch_size) const;

  std::vector<Tensor> tensors_;
  std::vector<Call> calls_;
  std::vector<std::pair<std::size_t, Shape>> inputs_;
  std::vector<Layout> layouts_;  // of the tensors
  std::vector<bool> reshapes_;   // by call: whether it reads its operand in another shape than that was made in
  Shapes made_;                  // of the sizes that it was made for
  // Of each owner, in the order of their first calls: the first and the last call that is not left out.
  struct Lifetime {
    std::size_t owner;
    std::size_t first;
    std::size_t last;
  };
  std::vector<Lifetime> lifetimes_;
};

}  // namespace sift::cpu
