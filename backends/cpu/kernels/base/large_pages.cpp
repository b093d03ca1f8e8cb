#include "base/large_pages.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/address_pieces.h"
#include "base/address_range.h"
#include "base/fork_safe_mutex.h"

namespace sift::cpu {
namespace {

constexpr std::size_t kLine = 64;
// Addresses that are reserved at a time. A large page has memory once something in it is written.
constexpr std::size_t kSlab = std::size_t{64} << 20;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Slab {
  explicit Slab(std::size_t bytes) : range(bytes), pieces(range.size()) {}

  AddressRange range;
  AddressPieces pieces;
};

class Slabs {
 public:
  // Null if the system gives no more.
  void* take(std::size_t bytes) {
    bytes = round_up(bytes, kLine);
    const std::lock_guard lock(mutex_);
    for (const auto& slab : slabs_) {
      const std::size_t offset = slab->pieces.take(bytes);
      if (offset != AddressPieces::kNone) return slab->range.at(offset);
    }
    auto slab = std::make_unique<Slab>(std::max(kSlab, round_up(bytes, AddressRange::kHugePage)));
    const std::size_t offset = slab->pieces.take(bytes);
    if (offset == AddressPieces::kNone) return nullptr;
    void* const at = slab->range.at(offset);
    slabs_.push_back(std::move(slab));
    return at;
  }

  // False if they are from elsewhere.
  bool give_back(const void* at, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    const auto own =
        std::ranges::find_if(slabs_, [&](const auto& slab) { return offset_in(*slab, at) < slab->range.size(); });
    if (own == slabs_.end()) return false;
    Slab& slab = **own;
    const AddressPieces::Piece free = slab.pieces.give_back(offset_in(slab, at), round_up(bytes, kLine));
    if (slab.pieces.end() == 0) {
      slabs_.erase(own);
    } else {
      slab.range.drop(free.begin, free.begin + free.bytes);
    }
    return true;
  }

 private:
  // Not below its size if `at` is not in the slab.
  static std::size_t offset_in(const Slab& slab, const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(slab.range.at(0));
  }

  ForkSafeMutex mutex_;
  std::vector<std::unique_ptr<Slab>> slabs_;
};

// Never destroyed: weights may be given up while the process exits.
Slabs& slabs() {
  static Slabs* const all = std::make_unique<Slabs>().release();
  return *all;
}

}  // namespace

void* take_large_pages(std::size_t bytes) {
  void* const at = slabs().take(bytes);
  return at != nullptr ? at : ::operator new(bytes, std::align_val_t{kLine});
}

void give_back_large_pages(void* at, std::size_t bytes) noexcept {
  if (!slabs().give_back(at, bytes)) ::operator delete(at, std::align_val_t{kLine});
}

}  // namespace sift::cpu
