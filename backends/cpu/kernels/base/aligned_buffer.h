// Memory for tensors: aligned to pages, grown but never shrunk, contents lost when it grows.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace sift::cpu {

class AlignedBuffer {
 public:
  float* floats(std::size_t count) {
    if (count > capacity_) {
      const std::size_t page = count * sizeof(float) >= kHugeFrom ? kHugePage : kPage;
      const std::size_t bytes = (count * sizeof(float) + page - 1) / page * page;
      memory_.reset();
      memory_.reset(static_cast<float*>(std::aligned_alloc(page, bytes)));
      if (!memory_) throw std::bad_alloc();
#if defined(__linux__)
      // A hint: where the system has no large pages, it provides small ones.
      if (page == kHugePage) madvise(memory_.get(), bytes, MADV_HUGEPAGE);
#endif
      capacity_ = bytes / sizeof(float);
    }
    return memory_.get();
  }

  std::size_t capacity() const { return capacity_; }  // floats

 private:
  static constexpr std::size_t kPage = 4096;
  // A tile reads a few cache lines of each channel, and channels of large images lie pages apart: with small pages,
  // nearly each of them is looked up in memory first.
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  static constexpr std::size_t kHugeFrom = 2 * kHugePage;
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Free> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace sift::cpu
