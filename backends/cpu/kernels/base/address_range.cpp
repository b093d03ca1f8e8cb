#include "base/address_range.h"

#include <bit>
#include <cstdint>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace sift::cpu {

#if defined(__unix__) || defined(__APPLE__)

namespace {

constexpr std::size_t kLeast = std::size_t{256} << 20;

std::size_t memory_of_machine() {
  const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

AddressRange::AddressRange() {
  // A limit on addresses, or a system that counts them as memory, may allow for less.
  for (std::size_t size = std::bit_ceil(memory_of_machine()); size >= kLeast; size /= 2) {
    void* const pages =
        mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) continue;
    mapped_ = pages;
    mapped_size_ = size + kHugePage;
    const std::size_t ahead = -reinterpret_cast<std::uintptr_t>(pages) % kHugePage;
    begin_ = static_cast<char*>(pages) + ahead;
    size_ = size;
#if defined(__linux__)
    // A tile reads a few cache lines of each channel, and channels of large images lie pages apart: with small pages,
    // nearly each of them is looked up in memory first.
    madvise(begin_, size_, MADV_HUGEPAGE);
#endif
    return;
  }
}

AddressRange::~AddressRange() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_size_);
}

std::size_t AddressRange::drop(std::size_t from, std::size_t to) const {
  const std::size_t begin = (from + kHugePage - 1) / kHugePage * kHugePage;
  const std::size_t end = to / kHugePage * kHugePage;
  if (begin >= end || madvise(begin_ + begin, end - begin, MADV_DONTNEED) != 0) return 0;
  return end - begin;
}

#else

AddressRange::AddressRange() = default;
AddressRange::~AddressRange() = default;
std::size_t AddressRange::drop(std::size_t, std::size_t) const { return 0; }

#endif

}  // namespace sift::cpu
