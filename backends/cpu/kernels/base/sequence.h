// A sequence of operators with their buffers, which runs as one call from Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/fork_safe_mutex.h"
#include "base/op.h"
#include "base/turns.h"

namespace sift::cpu {

class ThreadPool;

// Scratch memory that sequences borrow while they run; there are as many buffers as concurrent runs.
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

// The location of a tensor: in scratch memory, or in an array of the caller.
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
  // `array_sizes`: the floats that each of the caller's arrays must have. Throws std::invalid_argument for a tensor
  // that does not fit at its location.
  Sequence(std::vector<SequenceStep> steps, std::int64_t scratch_size, std::vector<std::int64_t> array_sizes);

  // The same sequence for another number of rows. All tensors must be matrices with this number of rows, each in
  // scratch memory in NCHWn16 or quads, or a whole array of the caller. Places in scratch memory are multiples of the
  // number of blocks, and dynamic quads have a multiple of it in front. The caller's arrays then have `array_sizes`
  // floats. Operators that depend on the number of rows are replaced, given as step and operator. Throws
  // std::invalid_argument for other tensors.
  Sequence resized(std::int64_t rows, std::span<const std::pair<std::size_t, std::shared_ptr<const Op>>> replaced,
                   std::vector<std::int64_t> array_sizes) const;

  // Sequences one after the other as one. An array of a part lies in the caller's array, or at the floats of scratch
  // memory, that the part's `arrays` say; `passed` floats of scratch memory are for those that one part writes and
  // another one reads. Throws std::invalid_argument for parts without a place for each of their arrays.
  struct Part {
    std::shared_ptr<const Sequence> sequence;
    std::vector<Place> arrays;
  };
  static Sequence chained(std::span<const Part> parts, std::int64_t passed, std::vector<std::int64_t> array_sizes);

  std::span<const SequenceStep> steps() const { return steps_; }
  std::span<const std::int64_t> array_sizes() const { return array_sizes_; }
  std::int64_t scratch_size() const { return scratch_size_; }
  // Whether a step writes to the caller's array of this number; other arrays are only read.
  bool writes(std::size_t array) const { return writes_[array]; }

  // `arrays` are the caller's, with at least `array_sizes()` floats. Throws std::invalid_argument before anything runs
  // if a tensor in NCHWn16 would not be aligned to 64 bytes in one of them. If `seconds` is not empty, it has one
  // element per step, to which the step's time is added. `caches` has one element for each step with a cache, in order.
  void run(ThreadPool& pool, Workspace& workspace, std::span<float* const> arrays, std::span<double> seconds,
           std::span<const KeyValueCache> caches = {}) const;

  // Runs once for each element of `arrays`, which is as that of `run`; each on one thread of `pool`, so that threads do
  // not wait for each other at every step.
  void run_each(ThreadPool& pool, Workspace& workspace, std::span<const std::vector<float*>> arrays) const;

 private:
  void prepare(ThreadPool& pool) const;
  void run_steps(ThreadPool& pool, Workspace& workspace, std::span<float* const> arrays, std::span<double> seconds,
                 std::span<const KeyValueCache> caches, Turns::Turn* turn) const;
  void check(const Place& place, std::int64_t size, Layout layout);
  void check_other(const Place& place, std::int64_t size, Layout layout);
  void find_shared();
  bool joins(std::size_t first, std::size_t step) const;

  std::vector<SequenceStep> steps_;
  std::int64_t scratch_size_;
  std::size_t cache_count_ = 0;  // steps whose operators take a cache
  std::vector<std::int64_t> array_sizes_;
  std::vector<bool> writes_;           // by array
  std::vector<std::size_t> together_;  // by step: number of steps that run together from this one on
  std::vector<Place> aligned_;         // in the caller's arrays
  // The number of threads that operators are prepared for.
  std::unique_ptr<std::atomic<int>> prepared_ = std::make_unique<std::atomic<int>>(0);
};

}  // namespace sift::cpu
