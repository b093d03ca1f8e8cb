// The tile registers of AMX: eight of 16 rows of 64 bytes, and products of bytes of two of them, added to a third.
//
// Intel SDM volume 1, chapter 18. The compiler's intrinsics name no memory that they read, so stores before a load of a
// tile could be moved behind it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sift::cpu::SIFT_ISA {

inline constexpr int kTileRows = 16;
inline constexpr std::ptrdiff_t kTileRowBytes = 64;
inline constexpr std::ptrdiff_t kTileBytes = kTileRows * kTileRowBytes;
inline constexpr int kTileLanes = 16;  // dwords of a row

// Tiles belong to a thread only for as long as one of these lives: their state is 8 KiB, which the system would save at
// each switch.
class TileRegisters {
 public:
  TileRegisters() {
    alignas(64) Configuration all{};
    all.palette = 1;
    for (int tile = 0; tile < kTiles; ++tile) {
      all.row_bytes[tile] = kTileRowBytes;
      all.rows[tile] = kTileRows;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(all));
  }
  ~TileRegisters() { __asm__ volatile("tilerelease" : : : "memory"); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

 private:
  static constexpr int kTiles = 8;
  struct Configuration {
    std::uint8_t palette;
    std::uint8_t start_row;
    std::uint8_t reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
  };
  static_assert(sizeof(Configuration) == 64);
};

template <int Tile>
[[gnu::always_inline]] inline void clear_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(Tile));
}

// Rows lie `step` bytes apart.
template <int Tile>
[[gnu::always_inline]] inline void load_tile(const void* from, std::ptrdiff_t step) {
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(Tile), "r"(from), "r"(step) : "memory");
}

template <int Tile>
[[gnu::always_inline]] inline void store_tile(void* to, std::ptrdiff_t step) {
  __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(Tile), "r"(to), "r"(step) : "memory");
}

// Sum[m][n] += the products of row m of Signed, 64 bytes, and column n of Unsigned, [16][n][4].
template <int Sum, int Signed, int Unsigned>
[[gnu::always_inline]] inline void add_tile_products() {
  __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(Signed), "i"(Unsigned));
}

}  // namespace sift::cpu::SIFT_ISA
