// Sizes of a core's caches, in bytes.
#pragma once

#include <cstdint>

namespace sift::cpu {

std::int64_t level1_cache_bytes();
std::int64_t level2_cache_bytes();

}  // namespace sift::cpu
