// Which parts of a range of addresses are taken.
#pragma once

#include <cstddef>
#include <map>

namespace sift::cpu {

// Neighbours that came back are one piece for whatever size comes next.
class AddressPieces {
 public:
  struct Piece {
    std::size_t begin;
    std::size_t bytes;
  };

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // Of offsets [0, size).
  explicit AddressPieces(std::size_t size) : size_(size) {}

  // The offset of `bytes` that are taken from now on, in the smallest piece that is large enough; kNone if there is
  // none.
  std::size_t take(std::size_t bytes);
  // The free piece that they are part of from now on.
  Piece give_back(std::size_t offset, std::size_t bytes);

  // Behind it nothing is taken.
  std::size_t end() const { return end_; }

 private:
  std::size_t size_;
  std::map<std::size_t, std::size_t> free_;  // offset: bytes; no two are neighbours, and none ends at end_
  std::size_t end_ = 0;
};

}  // namespace sift::cpu
