// Prefetches memory in portions, so that it is in the second-level cache when it is needed. If all requests were made
// at once, they would fill the queues and wait like the reads themselves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sift::cpu {

inline void prefetch_line(std::uintptr_t address) { __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 2); }

// The same offsets in each of a number of channels. Offsets outside the tensor have no effect.
class Prefetcher {
 public:
  Prefetcher() = default;
  // `places` and `stride`, from one channel to the next, are in floats.
  Prefetcher(std::span<const std::ptrdiff_t> places, const float* source, std::ptrdiff_t stride, std::int64_t channels)
      : places_(places),
        source_(reinterpret_cast<std::uintptr_t>(source)),
        stride_(static_cast<std::uintptr_t>(stride) * sizeof(float)),
        left_(channels * static_cast<std::int64_t>(places.size())) {}

  // The number of offsets that are left.
  std::int64_t left() const { return left_; }

  void step(std::int64_t count) {
    count = std::min(count, left_);
    left_ -= count;
    // What is left of a channel at a time, so that nothing is counted in memory.
    while (count > 0) {
      const std::int64_t lines = std::min(count, static_cast<std::int64_t>(places_.size() - next_));
      for (const std::ptrdiff_t place : places_.subspan(next_, static_cast<std::size_t>(lines))) {
        prefetch_line(source_ + static_cast<std::uintptr_t>(place) * sizeof(float));
      }
      count -= lines;
      next_ += static_cast<std::size_t>(lines);
      if (next_ == places_.size()) {
        next_ = 0;
        source_ += stride_;
      }
    }
  }

 private:
  std::span<const std::ptrdiff_t> places_;
  std::uintptr_t source_ = 0;
  std::uintptr_t stride_ = 0;
  std::int64_t left_ = 0;
  std::size_t next_ = 0;
};

}  // namespace sift::cpu
