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
    const std::size_t offset = place(bytes);
    if (offset < range_.size()) {
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

// The offset of a piece that is taken; the range's size if there is none.
std::size_t ArrayPool::place(std::size_t bytes) {
  auto best = free_.end();
  for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
    if (piece->second >= bytes && (best == free_.end() || piece->second < best->second)) best = piece;
  }
  if (best != free_.end()) {
    const auto [offset, size] = *best;
    free_.erase(best);
    if (size > bytes) free_.emplace(offset + bytes, size - bytes);
    return offset;
  }
  if (bytes > range_.size() - end_) return range_.size();
  const std::size_t offset = end_;
  end_ += bytes;
  written_ = std::max(written_, end_);
  return offset;
}

void ArrayPool::give_back(Block block) noexcept {
  if (!block.pooled) {
    std::free(block.begin);
    return;
  }
  const std::lock_guard lock(mutex_);
  out_ -= block.bytes;
  auto offset = static_cast<std::size_t>(reinterpret_cast<char*>(block.begin) - range_.at(0));
  std::size_t size = block.bytes;
  const auto after = free_.upper_bound(offset);
  if (after != free_.end() && offset + size == after->first) {
    size += after->second;
    free_.erase(after);
  }
  if (const auto next = free_.lower_bound(offset); next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  if (offset + size == end_) {
    end_ = offset;
  } else {
    free_.emplace(offset, size);
  }
}

// Pages behind the last array go first: pieces between arrays are the next to be used.
void ArrayPool::drop_surplus() {
  const std::size_t limit = std::max(most_out_ + most_out_ / kMostSurplus, end_);
  if (written_ <= limit) return;
  range_.drop(limit, written_);
  written_ = limit;
}

std::size_t ArrayPool::idle() const {
  const std::lock_guard lock(mutex_);
  return (written_ - out_) / sizeof(float);
}

}  // namespace sift::cpu
