// Memory for weights that are read from the beginning to the end in each run, and stay as long as their model.
//
// Those of a layer may be less than a large page, and with small ones as many addresses are looked up as fit no table
// of the processor. So weights of all layers lie next to each other in large pages, where the system has them.
#pragma once

#include <cstddef>
#include <new>

namespace sift::cpu {

// Aligned to 64 bytes. Throws std::bad_alloc.
void* take_large_pages(std::size_t bytes);
void give_back_large_pages(void* at, std::size_t bytes) noexcept;

template <typename T>
struct LargePageAllocator {
  using value_type = T;

  LargePageAllocator() = default;
  template <typename U>
  LargePageAllocator(const LargePageAllocator<U>&) {}

  T* allocate(std::size_t count) {
    if (count > static_cast<std::size_t>(-1) / 2 / sizeof(T)) throw std::bad_array_new_length();
    const std::size_t bytes = count * sizeof(T);
    return static_cast<T*>(bytes >= kLeast ? take_large_pages(bytes) : ::operator new(bytes));
  }

  void deallocate(T* at, std::size_t count) noexcept {
    const std::size_t bytes = count * sizeof(T);
    if (bytes >= kLeast) {
      give_back_large_pages(at, bytes);
    } else {
      ::operator delete(at);
    }
  }

  bool operator==(const LargePageAllocator&) const = default;

 private:
  static constexpr std::size_t kLeast = std::size_t{16} << 10;  // as much as is worth a part of a large page
};

}  // namespace sift::cpu
