// Memory for tensors: aligned to pages, grown but never shrunk, contents undefined when it grows.
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
  // Throws std::bad_alloc.
  float* floats(std::size_t count) {
    if (count > capacity_) grow(count * sizeof(float));
    return memory_.get();
  }

  std::size_t capacity() const { return capacity_; }  // floats

 private:
  static constexpr std::size_t kPage = 4096;
  // A tile reads a few cache lines of each channel, and channels of large images are pages apart. With small pages,
  // nearly every read would miss the TLB.
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  // A large page is provided in the time of thirty small ones (measured in a virtual machine: 35 us and 1.3 us), which
  // is most of what the first request of a new size takes longer than others.
  static constexpr std::size_t kHugeFrom = kHugePage / 4;
  static constexpr std::size_t kMappedFrom = std::size_t{128} << 10;

  struct Free {
    std::size_t mapped = 0;  // bytes of its own mapping; 0: from the allocator

    void operator()(float* memory) const {
#if defined(__linux__)
      if (mapped > 0) {
        munmap(memory, mapped);
        return;
      }
#endif
      std::free(memory);
    }
  };

  using Memory = std::unique_ptr<float, Free>;

  void grow(std::size_t least) {
    const std::size_t page = least >= kHugeFrom ? kHugePage : kPage;
    const std::size_t bytes = (least + page - 1) / page * page;
#if defined(__linux__)
    if (bytes >= kMappedFrom && page == kPage) {
      // If each request is a little longer, the buffer keeps its pages, because getting and clearing new ones would
      // take longer than the additional work.
      const std::size_t mapped = memory_.get_deleter().mapped;
      if (mapped == 0) {
        capacity_ = 0;
        memory_.reset();
      }
      void* const pages = mapped > 0 ? mremap(memory_.get(), mapped, bytes, MREMAP_MAYMOVE)
                                     : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pages == MAP_FAILED) throw std::bad_alloc();
      memory_.release();
      memory_ = Memory(static_cast<float*>(pages), Free{bytes});
      capacity_ = bytes / sizeof(float);
      return;
    }
#endif
    capacity_ = 0;
    memory_.reset();
    memory_ = Memory(static_cast<float*>(std::aligned_alloc(page, bytes)), Free{});
    if (!memory_) throw std::bad_alloc();
#if defined(__linux__)
    // Only a hint: without large pages, the system provides small ones.
    if (page == kHugePage) madvise(memory_.get(), bytes, MADV_HUGEPAGE);
#endif
    capacity_ = bytes / sizeof(float);
  }

  Memory memory_{nullptr, Free{}};
  std::size_t capacity_ = 0;
};

}  // namespace sift::cpu
