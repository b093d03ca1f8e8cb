// The interface of kernels to an executor: operators on tensors in a few layouts. Two layouts hold floats:
//
//   nchw      [n][c][h][w]               a kernel's lanes are 16 pixels of one image
//   nchw_n16  [ceil(n/16)][c][h][w][16]  NCHWn16: a kernel's lanes are 16 images; lanes past n hold finite values
//
// Three layouts hold bytes. They are counted in words of four bytes, the size of a float, and passed as pointers to
// floats:
//
//   bytes     [n][c][h][w]                         as in files; the last word may extend past the last byte
//   quads     [ceil(n h w / 16)][ceil(c / 4)][16][4]  u8: lanes are 16 positions of all images, each four channels;
//                                                  lanes and channels past the last hold any value
//   dynamic_quads  16 words and quads              the first words are a DynamicScale that a run has found
//
// One layout holds floats and the bytes that they are quantized to, each where an operator that reads one of them finds
// it:
//
//   float_quads  quads and [ceil(n h w / 16)][4 ceil(c / 4)][16]  floats of the same positions; the quads hold any
//   value
//                                                  where nothing reads them
//
// One layout holds places of values, and is counted in words as well:
//
//   integers  [n][c][h][w]               int64, two words each; they may begin at any word
//
// A matrix [m][k] is the tensor n=m, c=k, h=w=1: in NCHWn16 its lanes are 16 rows (tokens).
//
// An Op is immutable after construction, may run on several threads at once, and writes the same bits for any number of
// threads. `run` never reads or writes outside the tensors; scratch memory belongs to the threads that run it.
// Tensors in NCHWn16, in quads and in float_quads are aligned to 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>

#include "base/dtype.h"
#include "base/key_value_cache.h"

namespace sift::cpu {

class ThreadPool;

inline constexpr std::int64_t kLanes = 16;

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

enum class Layout : std::uint8_t { nchw, nchw_n16, bytes, quads, dynamic_quads, float_quads, integers };

// Whether tensors in this layout are aligned to 64 bytes. In other layouts, a tensor may begin at any channel of
// another.
inline bool is_aligned_layout(Layout layout) {
  return layout != Layout::nchw && layout != Layout::bytes && layout != Layout::integers;
}

// Words in front of dynamic quads.
inline constexpr std::int64_t kDynamicWords = 16;

struct Shape {
  std::int64_t n = 0;
  std::int64_t c = 0;
  std::int64_t h = 1;
  std::int64_t w = 1;

  bool operator==(const Shape&) const = default;
};

// More floats than any tensor has, but few enough for arithmetic with their bytes.
inline constexpr std::int64_t kMostElements = std::int64_t{1} << 56;

// Floats, or words of four bytes, that a tensor of this shape takes in `layout`; throws std::invalid_argument if
// there is no such tensor, so that a shape whose product overflows is not taken for a small one.
inline std::int64_t element_count(const Shape& shape, Layout layout) {
  std::int64_t room = kMostElements;
  for (const std::int64_t size : {shape.n, shape.c, shape.h, shape.w}) {
    if (size < 0 || size > room) {
      throw std::invalid_argument("shape: a size is negative, or there are too many elements");
    }
    if (size > 0) room /= size;  // empty tensors are checked as well
  }
  const std::int64_t pixels = shape.h * shape.w;
  const std::int64_t quads = ceil_div(shape.n * pixels, kLanes) * kLanes * ceil_div(shape.c, 4);
  switch (layout) {
    case Layout::nchw: break;
    case Layout::nchw_n16: return ceil_div(shape.n, kLanes) * kLanes * shape.c * pixels;
    case Layout::bytes: return ceil_div(shape.n * shape.c * pixels, 4);
    case Layout::quads: return quads;
    case Layout::dynamic_quads: return quads + kDynamicWords;
    case Layout::float_quads: return 5 * quads;
    case Layout::integers: return 2 * shape.n * shape.c * pixels;
  }
  return shape.n * shape.c * pixels;
}

// Operands in addition to the input; null if the operator does not take them.
struct Others {
  // Implicit, so that Others{} and a single pointer can be passed.
  Others(const float* second = nullptr, const float* third = nullptr, const float* mask = nullptr)  // NOLINT
      : second(second), third(third), mask(mask) {}

  const float* second;  // residual or second operand, in a layout that the operator tells
  const float* third;   // in the output's layout
  const float* mask;    // a plain array
};

// Floats of each.
struct OtherSizes {
  static constexpr std::int64_t kNotTaken = -1;

  std::int64_t second = kNotTaken;
  std::int64_t third = kNotTaken;
  std::int64_t mask = kNotTaken;
};

class Op;

// The maximum number of operators that run together. More gain nothing, and few inputs have more readers.
inline constexpr std::size_t kMostSharedRuns = 4;

// One of several operators that run on the same input.
struct SharedRun {
  const Op* op;
  const float* second;
  float* out;
};

class Op {
 public:
  Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;
  virtual ~Op() = default;

  // The shape of the output; throws std::invalid_argument if the operator does not take `in`.
  virtual Shape output_shape(const Shape& in) const = 0;

  // The type of floats in input, output and other operands.
  virtual DType dtype() const { return DType::float32; }

  virtual Layout input_layout() const = 0;
  virtual Layout output_layout() const { return input_layout(); }

  // Of the second operand.
  virtual Layout second_layout() const { return output_layout(); }

  // Bytes of packed weights and biases that this operator holds alone.
  virtual std::int64_t weight_bytes() const { return 0; }

  // The sizes of other operands for an input of shape `in`. Most operators have one, of the output's shape.
  virtual OtherSizes other_sizes(const Shape& in) const {
    return {.second = element_count(output_shape(in), second_layout())};
  }

  // What the first run with this shape and this number of threads does before it computes, so that it does so no more:
  // operators of a sequence do it side by side.
  virtual void prepare(const Shape&, int, ThreadPool*) const {}

  // `out` may be `others.second` if both have the same size. It may be `in` only if the operator is elementwise,
  // or a normalization.
  virtual void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const = 0;

  // Whether `other` may run together with this operator on the same input. The input is then prepared once, and threads
  // are joined once.
  virtual bool shares_input(const Op&) const { return false; }
  // Runs up to kMostSharedRuns operators on one input; this operator is the first of them. An output may overlap the
  // second operand of the same run, and nothing else.
  virtual void run_shared(ThreadPool& pool, const Shape& shape, const float* in,
                          std::span<const SharedRun> runs) const {
    for (const SharedRun& each : runs) each.op->run(pool, shape, in, each.second, each.out);
  }

  // Whether each run needs a cache, as an argument of `run_with_cache`.
  virtual bool takes_cache() const { return false; }
  virtual void run_with_cache(ThreadPool&, const Shape&, const float*, const Others&, const KeyValueCache&,
                              float*) const {
    throw std::logic_error("op: it takes no cache");
  }
};

}  // namespace sift::cpu
