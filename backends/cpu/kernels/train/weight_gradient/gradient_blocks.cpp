#include "train/weight_gradient/gradient_blocks.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "jit/generated_gradient.h"

namespace sift::cpu {
namespace {

// Pieces that are compared with a block, so that the time does not grow with the square of the rows.
constexpr int kCompared = 64;
// A column that the block has already, next to a further sum in it.
constexpr int kSharedWorth = 7;
constexpr std::uint32_t kNone = ~std::uint32_t{0};
constexpr std::uint32_t kWordBits = 64;

// Sets of columns, one for each piece.
class ColumnSets {
 public:
  ColumnSets(std::span<const GradientPiece> pieces, std::uint32_t column_begin, std::uint32_t slice_columns)
      : words_((slice_columns + kWordBits - 1) / kWordBits), bits_(words_ * pieces.size()) {
    for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
      for (const std::uint32_t at : pieces[piece].columns) {
        const std::uint32_t column = at - column_begin;
        bits_[piece * words_ + column / kWordBits] |= std::uint64_t{1} << column % kWordBits;
      }
    }
  }

  std::size_t words() const { return words_; }
  int shared(std::span<const std::uint64_t> block, std::size_t piece) const {
    int count = 0;
    for (std::size_t word = 0; word < words_; ++word)
      count += std::popcount(block[word] & bits_[piece * words_ + word]);
    return count;
  }
  void add_to(std::span<std::uint64_t> block, std::size_t piece) const {
    for (std::size_t word = 0; word < words_; ++word) block[word] |= bits_[piece * words_ + word];
  }

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

}  // namespace

std::vector<std::uint32_t> group_pieces(std::vector<GradientPiece>& pieces, std::uint32_t column_begin,
                                        std::uint32_t slice_columns) {
  const ColumnSets sets(pieces, column_begin, slice_columns);
  // The pieces that are in no block yet, as a list: next[i] follows i - 1.
  const auto count = static_cast<std::uint32_t>(pieces.size());
  std::vector<std::uint32_t> next(pieces.size() + 1);
  for (std::uint32_t i = 0; i <= count; ++i) next[i] = i < count ? i : kNone;
  const auto take = [&](std::uint32_t before) {
    const std::uint32_t piece = next[before];
    next[before] = next[piece + 1];
    return piece;
  };
  std::vector<GradientPiece> ordered;
  ordered.reserve(pieces.size());
  std::vector<std::uint32_t> sizes;
  std::vector<std::uint64_t> block(sets.words());
  while (next[0] != kNone) {
    std::fill(block.begin(), block.end(), 0);
    std::int64_t rows = 0;
    std::int64_t sums = 0;
    // The first one is the longest. Its place in the list is that of the one before.
    for (std::uint32_t chosen = 0; chosen != kNone;) {
      const std::uint32_t piece = take(chosen);
      ordered.push_back(pieces[piece]);
      sets.add_to(block, piece);
      sums += std::ssize(pieces[piece].columns);
      ++rows;
      chosen = kNone;
      int most = -1;
      int compared = 0;
      for (std::uint32_t before = 0; next[before] != kNone && compared < kCompared; before = next[before] + 1) {
        const std::uint32_t other = next[before];
        ++compared;
        if (!fits_gradient_code(sums + std::ssize(pieces[other].columns), rows + 1)) continue;
        const int worth = kSharedWorth * sets.shared(block, other) + static_cast<int>(pieces[other].columns.size());
        if (worth > most) {
          most = worth;
          chosen = before;
        }
      }
    }
    sizes.push_back(static_cast<std::uint32_t>(rows));
  }
  pieces = std::move(ordered);
  return sizes;
}

}  // namespace sift::cpu
