// Scratch memory of a thread: aligned to pages, grown but never shrunk, contents lost when it grows.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace sift::cpu {

class AlignedBuffer {
 public:
  float* floats(std::size_t count) {
    if (count > capacity_) {
      const std::size_t bytes = (count * sizeof(float) + kPage - 1) / kPage * kPage;
      memory_.reset();
      memory_.reset(static_cast<float*>(std::aligned_alloc(kPage, bytes)));
      if (!memory_) throw std::bad_alloc();
      capacity_ = bytes / sizeof(float);
    }
    return memory_.get();
  }

 private:
  static constexpr std::size_t kPage = 4096;
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Free> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace sift::cpu
