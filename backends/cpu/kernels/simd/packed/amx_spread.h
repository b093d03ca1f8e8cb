// Rows of packed weights as tiles of bytes.
#pragma once

#include "simd/packed/amx_tiles.h"
#include "simd/packed/row_kernels.h"
#include "simd/packed/spread_bytes.h"

namespace sift::cpu::SIFT_ISA {

// A word of up to sixteen rows. `masks` are at that word of the first row, and `values` where its values begin; they
// become the next word's. Loops that are not unrolled leave addresses where they are: in registers there would be too
// many.
template <bool Masked>
[[gnu::always_inline]] inline void spread_word(const std::uint64_t* masks, std::int64_t words, const std::byte** values,
                                               int count, std::byte* to) {
  constexpr int kTogether = 4;
  const auto spread = [&](int row, int place) __attribute__((always_inline)) {
    const std::uint64_t bits = Masked ? masks[place * words] : ~std::uint64_t{0};
    _mm512_store_si512(to + place * kTileRowBytes, spread_bytes<Masked>(bits, values[row]));
  };
  int row = 0;
#pragma GCC unroll 1
  for (; row + kTogether <= count; row += kTogether, masks += kTogether * words, to += kTogether * kTileRowBytes) {
#pragma GCC unroll 4
    for (int i = 0; i < kTogether; ++i) spread(row + i, i);
  }
#pragma GCC unroll 1
  for (; row < count; ++row, masks += words, to += kTileRowBytes) spread(row, 0);
}

}  // namespace sift::cpu::SIFT_ISA
