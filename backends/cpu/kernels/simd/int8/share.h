// Taps of fewer than four channels, four bytes each, packed into as few quads as hold them.
#pragma once

#include "simd/int8/kernel_table.h"
#include "simd/int8/lanes.h"

namespace sift::cpu::SIFT_ISA {

// One or two channels: taps lie side by side, four or two to a quad.
inline void share_side_by_side(const std::uint8_t* taps, std::int64_t count, std::int64_t channels, std::uint8_t* out) {
  const std::int64_t bits = 8 * channels;
  const std::uint32_t mask = (1U << bits) - 1;
  const std::int64_t together = kQuad / channels;
  for (std::int64_t first = 0; first < count; first += together, out += kBlockBytes) {
    const std::int64_t end = first + together < count ? first + together : count;
    for (std::int64_t at = 0; at < kBlockBytes; at += kWordBytes) {
      Words shared{};
      for (std::int64_t tap = first; tap < end; ++tap) {
        shared |= (load_words(taps + tap * kBlockBytes + at) & mask)
                  << static_cast<std::uint32_t>(bits * (tap - first));
      }
      store_words(out + at, shared);
    }
  }
}

// Three channels: of four taps, each of three quads has one, and a byte of the last.
inline void share_three(const std::uint8_t* taps, std::int64_t count, std::uint8_t* out) {
  constexpr std::uint32_t kMask = 0xffffff;
  for (std::int64_t first = 0; first < count; first += 4, taps += 4 * kBlockBytes) {
    const std::int64_t whole = count - first < 3 ? count - first : 3;
    const bool has_last = count - first > 3;
    for (std::int64_t tap = 0; tap < whole; ++tap, out += kBlockBytes) {
      for (std::int64_t at = 0; at < kBlockBytes; at += kWordBytes) {
        Words shared = load_words(taps + tap * kBlockBytes + at) & kMask;
        if (has_last)
          shared |= load_words(taps + 3 * kBlockBytes + at) << static_cast<std::uint32_t>(24 - 8 * tap) & ~kMask;
        store_words(out + at, shared);
      }
    }
  }
}

inline void share_taps(const std::uint8_t* taps, std::int64_t count, std::int64_t channels, std::uint8_t* out) {
  if (channels < 3) {
    share_side_by_side(taps, count, channels, out);
  } else {
    share_three(taps, count, out);
  }
}

}  // namespace sift::cpu::SIFT_ISA
