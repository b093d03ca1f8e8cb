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

bool AddressRange::reserve(std::size_t bytes) {
  void* const pages =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return false;
  mapped_ = pages;
  mapped_size_ = bytes + kHugePage;
  const std::size_t ahead = -reinterpret_cast<std::uintptr_t>(pages) % kHugePage;
  begin_ = static_cast<char*>(pages) + ahead;
  size_ = bytes;
#if defined(__linux__)
  // A tile reads a few cache lines of each channel, and channels of large images lie pages apart: with small pages,
  // nearly each of them is looked up in memory first.
  madvise(begin_, size_, MADV_HUGEPAGE);
#endif
  return true;
}

AddressRange::AddressRange() {
  // A limit on addresses, or a system that counts them as memory, may allow for less.
  for (std::size_t size = std::bit_ceil(memory_of_machine()); size >= kLeast; size /= 2) {
    if (reserve(size)) return;
  }
}

AddressRange::AddressRange(std::size_t bytes) { reserve(bytes); }

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

bool AddressRange::reserve(std::size_t) { return false; }
AddressRange::AddressRange() = default;
AddressRange::AddressRange(std::size_t) {}
AddressRange::~AddressRange() = default;
std::size_t AddressRange::drop(std::size_t, std::size_t) const { return 0; }

#endif

}  // namespace sift::cpu
