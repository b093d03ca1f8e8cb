#include "ops/selection/top_k.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <stdexcept>

#include "ops/selection/integers.h"
#include "ops/selection/unit_tasks.h"

namespace sift::cpu {
namespace {

// Of so few, each candidate is put in its place at once.
constexpr std::int64_t kMostInserted = 32;

// A number that is larger for a value that ranks higher: the order of its bits is made that of floats, and places
// behind it are inverted, so that a lower one ranks higher among equal values.
std::uint64_t rank_of(float value, std::int64_t place, bool is_least) {
  const float directed = (is_least ? -value : value) + 0.0F;  // 0 for -0, which is equal to it
  const auto bits = std::bit_cast<std::uint32_t>(directed);
  constexpr std::uint32_t kSign = 0x80000000U;
  const std::uint32_t ordered = (bits & kSign) != 0 ? ~bits : bits | kSign;
  const std::uint32_t nan = is_least ? 0 : ~0U;
  const std::uint32_t key = value != value ? nan : ordered;
  return (std::uint64_t{key} << 32U) | static_cast<std::uint32_t>(~place);
}

std::int64_t place_of(std::uint64_t rank) { return static_cast<std::uint32_t>(~rank); }

}  // namespace

TopK::TopK(std::int64_t k, bool is_least, const KernelTable& kernels)
    : k_(k), is_least_(is_least), kernels_(view_kernels_of(kernels)) {
  if (k < 1) throw std::invalid_argument("top k: k must be positive");
}

Shape TopK::output_shape(const Shape& in) const {
  if (in.c < k_ || in.c > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument("top k: it is of k values and more, and of fewer than 2**31");
  }
  return {in.n, k_, in.h, in.w};
}

// Leaves the ranks of the best k in `ranks`, in order. Only values beyond the k-th best so far are looked at.
void TopK::select(const float* row, std::int64_t count, std::vector<std::uint64_t>& ranks) const {
  ranks.clear();
  if (k_ <= kMostInserted) {
    insert(row, count, ranks);
  } else {
    collect(row, count, ranks);
  }
}

// The first place from `place` on whose value is beyond the last of `ranks`; `count` if there is none.
std::int64_t TopK::next(const float* row, std::int64_t place, std::int64_t count, std::uint64_t last) const {
  const float bound = row[place_of(last)];
  if (bound == bound) return place + kernels_.next_beyond(row + place, count - place, bound, is_least_);
  if (!is_least_) return count;  // nothing is beyond NaN
  while (place < count && row[place] != row[place]) ++place;
  return place;
}

// Keeps the ranks in order.
void TopK::insert(const float* row, std::int64_t count, std::vector<std::uint64_t>& ranks) const {
  for (std::int64_t place = 0; place < count; ++place) {
    if (static_cast<std::int64_t>(ranks.size()) < k_) {
      ranks.emplace_back();
    } else {
      place = next(row, place, count, ranks.back());
      if (place == count) return;
    }
    const std::uint64_t rank = rank_of(row[place], place, is_least_);
    std::size_t at = ranks.size() - 1;
    for (; at > 0 && ranks[at - 1] < rank; --at) ranks[at] = ranks[at - 1];
    ranks[at] = rank;
  }
}

// Collects as many candidates as there are best ones, and then chooses the best among both: a row takes time in
// proportion to its length.
void TopK::collect(const float* row, std::int64_t count, std::vector<std::uint64_t>& ranks) const {
  const std::int64_t room = std::min(count, 2 * k_);
  const auto add = [&](std::int64_t place) { ranks.push_back(rank_of(row[place], place, is_least_)); };
  const auto choose = [&] {
    std::nth_element(ranks.begin(), ranks.begin() + (k_ - 1), ranks.end(), std::greater<>());
    ranks.resize(static_cast<std::size_t>(k_));
  };
  std::int64_t place = 0;
  while (place < room) add(place++);
  while (place < count) {
    choose();
    const std::uint64_t last = ranks.back();
    while (place < count && static_cast<std::int64_t>(ranks.size()) < room) {
      place = next(row, place, count, last);
      if (place < count) add(place++);
    }
  }
  choose();
  std::sort(ranks.begin(), ranks.end(), std::greater<>());
}

void TopK::run(ThreadPool& pool, const Shape& shape, const float* in, const Others&, float* out) const {
  const std::int64_t pixels = shape.h * shape.w;
  for_each_task(pool, shape.n * pixels, shape.c, [&](std::int64_t unit, std::int64_t end) {
    std::vector<std::uint64_t> ranks;
    std::vector<float> column(static_cast<std::size_t>(pixels > 1 ? shape.c : 0));
    for (; unit < end; ++unit) {
      const std::int64_t image = unit / pixels;
      const std::int64_t pixel = unit % pixels;
      const float* row = in + (image * shape.c * pixels + pixel);
      if (pixels > 1) {
        for (std::size_t c = 0; c < column.size(); ++c) column[c] = row[static_cast<std::int64_t>(c) * pixels];
        row = column.data();
      }
      select(row, shape.c, ranks);
      std::int64_t place = image * k_ * pixels + pixel;
      for (const std::uint64_t rank : ranks) {
        store_integer(out, place, place_of(rank));
        place += pixels;
      }
    }
  });
}

}  // namespace sift::cpu
