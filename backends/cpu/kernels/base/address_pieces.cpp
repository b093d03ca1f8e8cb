#include "base/address_pieces.h"

#include <iterator>

namespace sift::cpu {

std::size_t AddressPieces::take(std::size_t bytes) {
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
  if (bytes > size_ - end_) return kNone;
  const std::size_t offset = end_;
  end_ += bytes;
  return offset;
}

AddressPieces::Piece AddressPieces::give_back(std::size_t offset, std::size_t bytes) {
  const auto after = free_.upper_bound(offset);
  if (after != free_.end() && offset + bytes == after->first) {
    bytes += after->second;
    free_.erase(after);
  }
  if (const auto next = free_.lower_bound(offset); next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  if (offset + bytes == end_) {
    end_ = offset;
  } else {
    free_.emplace(offset, bytes);
  }
  return {offset, bytes};
}

}  // namespace sift::cpu
