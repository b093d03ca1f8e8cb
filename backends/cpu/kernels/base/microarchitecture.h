// The processor's microarchitecture: it decides what instructions cost, and with that which tile is fastest.
#pragma once

#include <cstdint>

namespace sift::cpu {

// zen4: AVX-512 in two halves, one block a cycle; zen5: whole blocks, two of which it multiplies and hardly as many of
// which it loads; amd: AMD's others.
enum class Microarchitecture : std::uint8_t { amd, zen4, zen5, intel };

// AMD's with AVX-512.
constexpr bool is_zen4_or_newer(Microarchitecture processor) {
  return processor == Microarchitecture::zen4 || processor == Microarchitecture::zen5;
}

// This machine's; processors of other makers count as amd.
Microarchitecture detected_microarchitecture();

}  // namespace sift::cpu
