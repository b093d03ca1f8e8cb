#include "base/read_loop.h"

#include <algorithm>
#include <atomic>

#include "base/thread_pool.h"

namespace sift::cpu {

std::uint64_t read_all(ThreadPool& pool, std::span<const std::uint64_t> memory) {
  constexpr std::size_t kChunk = std::size_t{1} << 16;  // words
  constexpr std::size_t kSums = 16;
  std::atomic<std::uint64_t> all{0};
  const auto chunks = static_cast<std::int64_t>((memory.size() + kChunk - 1) / kChunk);
  pool.parallel_for(chunks, [&](std::int64_t chunk) {
    const std::size_t first = static_cast<std::size_t>(chunk) * kChunk;
    const std::span<const std::uint64_t> own = memory.subspan(first, std::min(kChunk, memory.size() - first));
    std::uint64_t sums[kSums] = {};
    std::size_t at = 0;
    for (; at + kSums <= own.size(); at += kSums) {
      for (std::size_t i = 0; i < kSums; ++i) sums[i] ^= own[at + i];
    }
    for (; at < own.size(); ++at) sums[0] ^= own[at];
    for (std::size_t i = 1; i < kSums; ++i) sums[0] ^= sums[i];
    all ^= sums[0];
  });
  return all;
}

}  // namespace sift::cpu
