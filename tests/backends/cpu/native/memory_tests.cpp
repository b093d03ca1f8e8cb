#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <thread>
#include <vector>

#include "base/address_pieces.h"
#include "base/large_pages.h"
#include "suites.h"

namespace sift::cpu {
namespace {

// Pieces are taken and come back at random: they never overlap, and at last all of the range is one.
void test_pieces() {
  Random random(5);
  constexpr std::size_t kSize = 1000;
  AddressPieces pieces(kSize);
  std::map<std::size_t, std::size_t> taken;
  for (int turn = 0; turn < 20000; ++turn) {
    if (random.chance(0.5)) {
      const auto bytes = static_cast<std::size_t>(random.between(1, 200));
      const std::size_t offset = pieces.take(bytes);
      if (offset == AddressPieces::kNone) continue;
      const auto next = taken.lower_bound(offset);
      check(next == taken.end() || offset + bytes <= next->first, "a piece ends before the next");
      check(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= offset, "and begins behind");
      check(offset + bytes <= pieces.end() && pieces.end() <= kSize, "a piece is within the range");
      taken.emplace(offset, bytes);
    } else if (!taken.empty()) {
      const auto one = std::next(taken.begin(), random.between(0, static_cast<std::int64_t>(taken.size()) - 1));
      const AddressPieces::Piece free = pieces.give_back(one->first, one->second);
      check(free.begin <= one->first && one->first + one->second <= free.begin + free.bytes,
            "it is part of what is free");
      taken.erase(one);
    }
  }
  for (const auto& [offset, bytes] : taken) pieces.give_back(offset, bytes);
  check(pieces.end() == 0 && pieces.take(kSize) == 0, "what came back is one piece");
  check(pieces.take(1) == AddressPieces::kNone, "and there is nothing else");
}

// Several threads have weights of their own, of all sizes, next to each other.
void test_large_pages() {
  using Numbers = std::vector<std::uint32_t, LargePageAllocator<std::uint32_t>>;
  std::atomic<int> wrong{0};
  std::vector<std::thread> owners;
  for (std::uint32_t owner = 0; owner < 3; ++owner) {
    owners.emplace_back([&, owner] {
      Random random(owner);
      std::vector<Numbers> held;
      for (std::uint32_t turn = 0; turn < 60; ++turn) {
        const auto size = static_cast<std::size_t>(random.between(1, turn % 20 == 0 ? 1 << 20 : 1 << 14));
        held.emplace_back(size, 100 * turn + owner);
        if (size * sizeof(std::uint32_t) >= (std::size_t{16} << 10)) {
          wrong += reinterpret_cast<std::uintptr_t>(held.back().data()) % 64 != 0;
        }
        if (!random.chance(0.4)) continue;
        Numbers& one = held[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(held.size()) - 1))];
        wrong +=
            !std::ranges::all_of(one, [&](std::uint32_t value) { return value == one[0] && value % 100 == owner; });
        one.swap(held.back());
        held.pop_back();
      }
    });
  }
  for (std::thread& owner : owners) owner.join();
  check(wrong == 0, "weights of several threads keep what is in them");
}

}  // namespace

void test_memory() {
  test_pieces();
  test_large_pages();
}

}  // namespace sift::cpu
