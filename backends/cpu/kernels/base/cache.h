// Sizes of the caches that a core uses, in bytes.
#pragma once

#include <cstdint>

namespace sift::cpu {

std::int64_t level1_cache_bytes();
std::int64_t level2_cache_bytes();
// The last one, which cores share.
std::int64_t level3_cache_bytes();

// What a process can count on of a last-level cache that others share: larger tensors are read from memory.
inline constexpr std::int64_t kSharedCacheBytes = 8 << 20;

// Whether a tensor of this many floats is too large to be found in a cache.
inline bool exceeds_caches(std::int64_t floats) {
  return floats * static_cast<std::int64_t>(sizeof(float)) >= kSharedCacheBytes;
}

// Whether such an output is written by non-temporal stores, so that its lines are not fetched to be overwritten. Where
// it replaces `operand`, the lines have just been read, and non-temporal stores would first evict them.
inline bool stores_non_temporally(std::int64_t floats, const float* out, const float* operand) {
  return exceeds_caches(floats) && out != operand;
}

}  // namespace sift::cpu
