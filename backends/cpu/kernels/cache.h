// Sizes of the caches that a core uses, in bytes.
#pragma once

#include <cstdint>

namespace sift::cpu {

std::int64_t level1_cache_bytes();
std::int64_t level2_cache_bytes();
// The last one, which cores share.
std::int64_t level3_cache_bytes();

}  // namespace sift::cpu
