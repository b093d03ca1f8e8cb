// Memory for weights, which is returned to the system when it is freed. Memory that threads other than the first one
// free usually stays with the allocator, and weights are read on several threads and released soon. Large arrays use
// large pages if the system provides them.
#pragma once

#include <cstddef>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

namespace sift::cpu {

template <typename T>
struct PageAllocator {
  using value_type = T;

  PageAllocator() = default;
  template <typename U>
  PageAllocator(const PageAllocator<U>&) {}

  T* allocate(std::size_t count) {
#if defined(__unix__) || defined(__APPLE__)
    if (count > static_cast<std::size_t>(-1) / sizeof(T)) throw std::bad_array_new_length();
    if (count * sizeof(T) >= kPages) {
      void* const pages = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pages == MAP_FAILED) throw std::bad_alloc();
#if defined(__linux__)
      if (count * sizeof(T) >= kHuge) madvise(pages, count * sizeof(T), MADV_HUGEPAGE);
#endif
      return static_cast<T*>(pages);
    }
#endif
    return static_cast<T*>(::operator new(count * sizeof(T)));
  }

  void deallocate(T* at, std::size_t count) noexcept {
#if defined(__unix__) || defined(__APPLE__)
    if (count * sizeof(T) >= kPages) {
      munmap(at, count * sizeof(T));
      return;
    }
#endif
    ::operator delete(at);
  }

  bool operator==(const PageAllocator&) const = default;

 private:
  static constexpr std::size_t kPages = std::size_t{256} << 10;  // from this size on, a system call is worth it
  static constexpr std::size_t kHuge = std::size_t{4} << 20;     // two large pages
};

}  // namespace sift::cpu
