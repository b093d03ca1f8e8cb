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

}  // namespace sift::cpu
