// Whose core it is. What the same instructions cost differs, and with it which tile takes the least time.
#pragma once

#include <cstdint>

namespace sift::cpu {

enum class Core : std::uint8_t { amd, intel };

// This machine's. Others' processors are taken for AMD's.
Core detected_core();

}  // namespace sift::cpu
