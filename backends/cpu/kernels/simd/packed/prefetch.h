// Lines that are asked for before they are read: what processors prefetch by themselves ends with each page, and lags
// behind.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

inline constexpr std::ptrdiff_t kValuesAhead = 2048;
inline constexpr std::int64_t kMasksAhead = 64;

[[gnu::always_inline]] inline void prefetch_lines(const std::byte* at, std::int64_t lines) {
#pragma GCC unroll 1
  for (std::int64_t line = 0; line < lines; ++line) __builtin_prefetch(at + 64 * line, 0, 3);
}

[[gnu::always_inline]] inline void prefetch_values(const std::byte* values, std::int64_t lines) {
  prefetch_lines(values + kValuesAhead, lines);
}

}  // namespace sift::cpu::SIFT_ISA
