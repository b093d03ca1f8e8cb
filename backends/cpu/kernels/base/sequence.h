// Operators one after the other, with their buffers: what runs between two calls from Python.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/fork_safe_mutex.h"
#include "base/op.h"

namespace sift::cpu {

class ThreadPool;

// Scratch memory that sequences borrow while they run: as many buffers as there are runs at the same time.
class Workspace {
 public:
  class Loan {
   public:
    Loan(Workspace& owner, std::unique_ptr<AlignedBuffer> buffer) : owner_(owner), buffer_(std::move(buffer)) {}
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    AlignedBuffer& buffer() { return *buffer_; }

   private:
    Workspace& owner_;
    std::unique_ptr<AlignedBuffer> buffer_;
  };

  Loan borrow();
  // Frees what is not lent.
  void release_idle();

 private:
  ForkSafeMutex mutex_;
  std::vector<std::unique_ptr<AlignedBuffer>> free_;
};

// Where a tensor lies: in the scratch memory, or in an array of the caller.
struct Place {
  static constexpr std::int64_t kNowhere = -2;
  static constexpr std::int64_t kScratch = -1;

  std::int64_t array = kNowhere;  // index of the caller's array, or one of the above
  std::int64_t offset = 0;        // floats; of scratch memory in NCHWn16 a multiple of 16
};

struct SequenceStep {
  std::shared_ptr<const Op> op;
  Shape shape;  // of the input
  Place in;
  Place out;
  Place second;
  Place third;
  Place mask;
};

class Sequence {
 public:
  // `array_sizes`: floats that each of the caller's arrays must have. Throws std::invalid_argument for a tensor that
  // does not fit in its place.
  Sequence(std::vector<SequenceStep> steps, std::int64_t scratch_size, std::vector<std::int64_t> array_sizes);

  // The same for matrices of another number of rows, where all tensors are matrices of as many rows: in scratch memory
  // in NCHWn16, or all of one of the caller's arrays, which have `array_sizes` floats then. Operators that depend on
  // the number are replaced: step and operator. Throws std::invalid_argument for a sequence of other tensors.
  Sequence resized(std::int64_t rows, std::span<const std::pair<std::size_t, std::shared_ptr<const Op>>> replaced,
                   std::vector<std::int64_t> array_sizes) const;

  std::span<const SequenceStep> steps() const { return steps_; }
  std::span<const std::int64_t> array_sizes() const { return array_sizes_; }
  std::int64_t scratch_size() const { return scratch_size_; }
  // Whether a step's output lies in the caller's array of this number; the others are only read.
  bool writes(std::size_t array) const { return writes_[array]; }

  // `arrays` are the caller's, of at least `array_sizes()` floats. Throws std::invalid_argument, before anything is
  // run, where a tensor in NCHWn16 would not be aligned to 64 bytes in one of them. `seconds`, if not empty, has one
  // element per step, to which the step's time is added. `caches` has one for each step that takes a cache, in order.
  void run(ThreadPool& pool, Workspace& workspace, std::span<float* const> arrays, std::span<double> seconds,
           std::span<const KeyValueCache> caches = {}) const;

 private:
  void check(const Place& place, std::int64_t size, Layout layout);
  void check_other(const Place& place, std::int64_t size, Layout layout);
  void find_shared();
  bool joins(std::size_t first, std::size_t step) const;

  std::vector<SequenceStep> steps_;
  std::int64_t scratch_size_;
  std::size_t cache_count_ = 0;  // steps whose operators take a cache
  std::vector<std::int64_t> array_sizes_;
  std::vector<bool> writes_;           // by array
  std::vector<std::size_t> together_;  // by step: how many run together from this one on
  std::vector<Place> aligned_;         // in the caller's arrays
};

}  // namespace sift::cpu
