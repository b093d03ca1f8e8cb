// Whose core it is. What the same instructions cost differs, and with it which tile takes the least time.
#pragma once

#include <cstdint>

namespace sift::cpu {

// zen4: AMD's with AVX-512 in halves, one block a cycle; amd: AMD's others.
enum class Core : std::uint8_t { amd, zen4, intel };

// This machine's. Others' processors are taken for AMD's.
Core detected_core();

}  // namespace sift::cpu
