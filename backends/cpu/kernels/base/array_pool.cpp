#include "base/array_pool.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <new>

namespace sift::cpu {

ArrayPool::Block ArrayPool::take(std::size_t count) {
  if (count > (std::numeric_limits<std::size_t>::max() - kPage) / sizeof(float)) throw std::bad_alloc();
  const std::size_t bytes = std::max((count * sizeof(float) + kPage - 1) / kPage * kPage, kPage);
  {
    const std::lock_guard lock(mutex_);
    const std::size_t offset = pieces_.take(bytes);
    if (offset != AddressPieces::kNone) {
      written_ = std::max(written_, pieces_.end());
      out_ += bytes;
      most_out_ = std::max(most_out_, out_);
      drop_surplus();
      return {.begin = reinterpret_cast<float*>(range_.at(offset)), .bytes = bytes, .pooled = true};
    }
  }
  auto* const own = static_cast<float*>(std::aligned_alloc(kPage, bytes));
  if (own == nullptr) throw std::bad_alloc();
  return {.begin = own, .bytes = bytes, .pooled = false};
}

void ArrayPool::give_back(Block block) noexcept {
  if (!block.pooled) {
    std::free(block.begin);
    return;
  }
  const std::lock_guard lock(mutex_);
  out_ -= block.bytes;
  pieces_.give_back(static_cast<std::size_t>(reinterpret_cast<char*>(block.begin) - range_.at(0)), block.bytes);
}

// Pages behind the last array go first: pieces between arrays are the next to be used.
void ArrayPool::drop_surplus() {
  const std::size_t limit = std::max(most_out_ + most_out_ / kMostSurplus, pieces_.end());
  if (written_ <= limit) return;
  range_.drop(limit, written_);
  written_ = limit;
}

void ArrayPool::release_idle() {
  const std::lock_guard lock(mutex_);
  most_out_ = out_;
  // Nothing is behind what was written.
  range_.drop(pieces_.end(), std::min(written_ + AddressRange::kHugePage, range_.size()));
  written_ = pieces_.end();
}

std::size_t ArrayPool::idle() const {
  const std::lock_guard lock(mutex_);
  return (written_ - out_) / sizeof(float);
}

}  // namespace sift::cpu
