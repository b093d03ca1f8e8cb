// Sizes of the caches that a core uses, in bytes.
#pragma once

#include <cstdint>

namespace sift::cpu {

std::int64_t level1_cache_bytes();
std::int64_t level2_cache_bytes();
// The last one, which cores share.
std::int64_t level3_cache_bytes();

// The part of a shared last-level cache that a process can count on: larger tensors are read from memory.
inline constexpr std::int64_t kSharedCacheBytes = 8 << 20;

// Whether a tensor of this many floats is too large to stay in a cache.
inline bool exceeds_caches(std::int64_t floats) {
  return floats * static_cast<std::int64_t>(sizeof(float)) >= kSharedCacheBytes;
}

// Whether an output of this size is written by non-temporal stores, so that its lines are not fetched only to be
// overwritten. If it replaces `operand`, its lines have just been read, and non-temporal stores would first evict them.
inline bool stores_non_temporally(std::int64_t floats, const float* out, const float* operand) {
  return exceeds_caches(floats) && out != operand;
}

}  // namespace sift::cpu
