// What the taps of a window read of quads, which lie as they are multiplied: 16 positions side by side.
#pragma once

#include "simd/int8/kernel_table.h"
#include "simd/int8/lanes.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512F__)
// Which lanes of a tap are inside of the image. Unsigned: negative rows and columns are large ones.
class TapMasks {
 public:
  explicit TapMasks(const GatherTapsArgs& args)
      : ys_(_mm512_loadu_si512(args.ys)),
        xs_(_mm512_loadu_si512(args.xs)),
        height_(_mm512_set1_epi32(args.height)),
        width_(_mm512_set1_epi32(args.width)) {}

  // Taps follow each other along x.
  [[gnu::always_inline]] __mmask16 inside(std::int32_t y, std::int32_t x) {
    if (y != y_ || is_first_) {
      rows_ = _mm512_cmplt_epu32_mask(_mm512_add_epi32(ys_, _mm512_set1_epi32(y)), height_);
      y_ = y;
      is_first_ = false;
    }
    return _mm512_mask_cmplt_epu32_mask(rows_, _mm512_add_epi32(xs_, _mm512_set1_epi32(x)), width_);
  }

 private:
  __m512i ys_;
  __m512i xs_;
  __m512i height_;
  __m512i width_;
  __mmask16 rows_ = 0;
  std::int32_t y_ = 0;
  bool is_first_ = true;
};

// Whether lanes are positions of one row, every one or every second of them, and the taps not too far from each other.
template <int Step>
[[gnu::always_inline]] inline bool is_row(const GatherTapsArgs& args) {
  constexpr std::int32_t kMostDistance = 15;
  constexpr int kLast = kQuadBlock - 1;
  return args.ys[0] == args.ys[kLast] && args.xs[kLast] - args.xs[0] == kLast * Step &&
         args.tap_xs.back() <= kMostDistance;
}

// Bits [begin, end) of 64.
[[gnu::always_inline]] inline std::uint64_t bits_between(std::int64_t begin, std::int64_t end) {
  const auto below = [](std::int64_t bit) {
    return bit <= 0 ? 0 : bit >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bit) - 1;
  };
  return below(end) & ~below(begin);
}

// Images of one quad of channels, as first layers read: the words of a row are adjacent, and lanes take every one (Step
// 1) or every second. By value: behind a reference, arguments would be read again after every store.
template <int Step>
void gather_words(const GatherTapsArgs args) {  // NOLINT
  const __m512i fill = _mm512_set1_epi32(static_cast<int>(args.fill * 0x01010101U));
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i evens = _mm512_add_epi32(lanes, lanes);
  const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
  const std::int32_t* const ys = args.tap_ys.data();
  const std::int32_t* const xs = args.tap_xs.data();
  const std::size_t count = args.tap_ys.size();
  const std::int32_t first_y = args.ys[0];
  const std::int32_t first_x = args.xs[0];
  const std::ptrdiff_t first_position = args.positions[0];
  std::uint8_t* out = args.out;
  for (std::size_t tap = 0; tap < count;) {
    const std::int32_t y = ys[tap];
    // Of the words from the first lane's on, those that are in the row: others are the fill, and are not read.
    const bool is_inside = first_y + y >= 0 && first_y + y < args.height;
    const std::uint64_t in_row = is_inside ? bits_between(-first_x, args.width - first_x) : 0;
    const std::ptrdiff_t first = first_position + std::ptrdiff_t{y} * args.width;
    const auto from = reinterpret_cast<std::uintptr_t>(args.in) + static_cast<std::uintptr_t>(first * kQuad);
    const auto words_at = [&](std::int32_t word) {
      const auto* const at = reinterpret_cast<const std::uint8_t*>(from + static_cast<std::uintptr_t>(word * kQuad));
      return _mm512_mask_loadu_epi32(fill, static_cast<__mmask16>(in_row >> word), at);
    };
    if constexpr (Step == 1) {
      for (; tap < count && ys[tap] == y; ++tap, out += kBlockBytes) _mm512_store_si512(out, words_at(xs[tap]));
    } else {
      const __m512i words[] = {words_at(0), words_at(16), words_at(32)};
      const __m512i even = _mm512_permutex2var_epi32(words[0], evens, words[1]);
      const __m512i next_even = _mm512_permutexvar_epi32(evens, words[2]);
      const __m512i odd = _mm512_permutex2var_epi32(words[0], odds, words[1]);
      const __m512i next_odd = _mm512_permutexvar_epi32(odds, words[2]);
      for (; tap < count && ys[tap] == y; ++tap, out += kBlockBytes) {
        const __m512i places = _mm512_add_epi32(lanes, _mm512_set1_epi32(xs[tap] >> 1));
        _mm512_store_si512(out, (xs[tap] & 1) == 0 ? _mm512_permutex2var_epi32(even, places, next_even)
                                                   : _mm512_permutex2var_epi32(odd, places, next_odd));
      }
    }
  }
}

// One tap whose lanes come from any blocks.
inline void gather_blocks(const std::uint8_t* in, std::ptrdiff_t block_bytes, __m512i positions, __mmask16 inside,
                          std::int32_t first, std::int32_t last, __m512i fill, std::uint8_t* out) {
  const __m512i blocks = _mm512_srai_epi32(positions, 4);
  const std::uint8_t* sources[kQuadBlock];
  __mmask16 masks[kQuadBlock];
  int count = 0;
  for (std::int32_t block = first; block <= last; ++block) {
    const __mmask16 mask = _mm512_mask_cmpeq_epi32_mask(inside, blocks, _mm512_set1_epi32(block));
    if (mask == 0) continue;
    sources[count] = in + block * block_bytes;
    masks[count++] = mask;
  }
  for (std::ptrdiff_t at = 0; at < block_bytes; at += kBlockBytes) {
    __m512i value = fill;
    for (int i = 0; i < count; ++i) {
      value = _mm512_mask_permutexvar_epi32(value, masks[i], positions, _mm512_load_si512(sources[i] + at));
    }
    _mm512_store_si512(out + at, value);
  }
}

inline void gather_taps(const GatherTapsArgs& args) {
  if (args.quads == 1 && is_row<1>(args)) return gather_words<1>(args);
  if (args.quads == 1 && is_row<2>(args)) return gather_words<2>(args);
  TapMasks masks(args);
  const __m512i origins = _mm512_loadu_si512(args.positions);
  const __m512i fill = _mm512_set1_epi32(static_cast<int>(args.fill * 0x01010101U));
  const std::ptrdiff_t block_bytes = args.quads * kBlockBytes;
  std::uint8_t* out = args.out;
  for (std::size_t tap = 0; tap < args.tap_ys.size(); ++tap, out += block_bytes) {
    const std::int32_t y = args.tap_ys[tap];
    const std::int32_t x = args.tap_xs[tap];
    const __mmask16 inside = masks.inside(y, x);
    if (inside == 0) {
      for (std::ptrdiff_t at = 0; at < block_bytes; at += kBlockBytes) _mm512_store_si512(out + at, fill);
      continue;
    }
    // Those of lanes outside may run over.
    const std::uint32_t distance =
        static_cast<std::uint32_t>(y) * static_cast<std::uint32_t>(args.width) + static_cast<std::uint32_t>(x);
    const __m512i positions = _mm512_add_epi32(origins, _mm512_set1_epi32(static_cast<int>(distance)));
    const auto moved = static_cast<std::int32_t>(distance);
    const std::int32_t first = (args.positions[__builtin_ctz(inside)] + moved) >> 4;
    const std::int32_t last = (args.positions[31 - __builtin_clz(inside)] + moved) >> 4;
    if (last - first > 1) {
      gather_blocks(args.in, block_bytes, positions, inside, first, last, fill, out);
      continue;
    }
    // Bit 4 of a position says which of two neighbours it is in; lanes outside are the fill, which is among the places.
    const __m512i places = _mm512_mask_blend_epi32(inside, fill, positions);
    const std::int32_t other = last > first ? last : first;
    const std::uint8_t* const even = args.in + (first % 2 == 0 ? first : other) * block_bytes;
    const std::uint8_t* const odd = args.in + (first % 2 == 0 ? other : first) * block_bytes;
    for (std::ptrdiff_t at = 0; at < block_bytes; at += kBlockBytes) {
      const __m512i a = _mm512_load_si512(even + at);
      _mm512_store_si512(out + at, _mm512_mask2_permutex2var_epi32(a, places, inside, _mm512_load_si512(odd + at)));
    }
  }
}
#else
inline void gather_taps(const GatherTapsArgs& args) {
  std::uint8_t* out = args.out;
  const std::ptrdiff_t block_bytes = args.quads * kBlockBytes;
  const Words fill = splat(args.fill * 0x01010101U);
  for (std::size_t tap = 0; tap < args.tap_ys.size(); ++tap, out += block_bytes) {
    for (std::ptrdiff_t at = 0; at < block_bytes; at += kWordBytes) store_words(out + at, fill);
    const auto y = static_cast<std::uint32_t>(args.tap_ys[tap]);
    const auto x = static_cast<std::uint32_t>(args.tap_xs[tap]);
    for (int lane = 0; lane < kQuadBlock; ++lane) {
      // Unsigned: negative rows and columns are large ones.
      const bool is_inside = (static_cast<std::uint32_t>(args.ys[lane]) + y < static_cast<std::uint32_t>(args.height)) &
                             (static_cast<std::uint32_t>(args.xs[lane]) + x < static_cast<std::uint32_t>(args.width));
      if (!is_inside) continue;
      const std::int32_t position = args.positions[lane] + args.tap_ys[tap] * args.width + args.tap_xs[tap];
      const std::uint8_t* const from = args.in + position / 16 * block_bytes + position % 16 * kQuad;
      for (std::ptrdiff_t at = 0; at < block_bytes; at += kBlockBytes) {
        __builtin_memcpy(out + at + lane * kQuad, from + at, kQuad);
      }
    }
  }
}
#endif

#if defined(__AVX512BW__)
// Of lanes that are positions of one row, every one (Step 1) or every second: the taps of a row find theirs in three
// blocks that follow each other. No tap is copied.
template <int Step>
void max_rows(const GatherTapsArgs args, std::uint8_t* out) {  // NOLINT
  constexpr std::int32_t kMostTaps = 16;
  constexpr std::int32_t kLast = 2 * kQuadBlock + kQuadBlock - 1;
  const std::ptrdiff_t block_bytes = args.quads * kBlockBytes;
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  TapMasks masks(args);
  const std::int32_t first_x = args.xs[0];
  bool is_first = true;
  for (std::size_t tap = 0; tap < args.tap_ys.size();) {
    const std::int32_t y = args.tap_ys[tap];
    const std::int32_t position = args.positions[0] + y * args.width;
    const std::int32_t begin = position >> 4;
    __m512i places[kMostTaps];
    __mmask16 near[kMostTaps];  // in the first two blocks
    __mmask16 far[kMostTaps];
    int count = 0;
    for (; tap < args.tap_ys.size() && args.tap_ys[tap] == y; ++tap) {
      const std::int32_t x = args.tap_xs[tap];
      const __mmask16 inside = masks.inside(y, x);
      if (inside == 0) continue;
      places[count] = _mm512_add_epi32(_mm512_slli_epi32(lanes, Step - 1), _mm512_set1_epi32((position & 15) + x));
      const __mmask16 is_near = _mm512_cmplt_epi32_mask(places[count], _mm512_set1_epi32(2 * kQuadBlock));
      near[count] = inside & is_near;
      far[count++] = inside & ~is_near;
    }
    if (count == 0) continue;
    // Blocks without a position of the row are not read: they may not be there.
    const std::int32_t low = (position + (first_x < 0 ? -first_x : 0)) >> 4;
    const std::int32_t end = position + args.width - first_x - 1;
    const std::int32_t high = (end < position + kLast ? end : position + kLast) >> 4;
    const auto block_at = [&](std::int32_t number) {
      return args.in + (number < low ? low : number > high ? high : number) * block_bytes;
    };
    const std::uint8_t* const blocks[] = {block_at(begin), block_at(begin + 1), block_at(begin + 2)};
    for (std::ptrdiff_t at = 0; at < block_bytes; at += kBlockBytes) {
      const __m512i first = _mm512_load_si512(blocks[0] + at);
      const __m512i second = _mm512_load_si512(blocks[1] + at);
      const __m512i third = _mm512_load_si512(blocks[2] + at);
      __m512i most = is_first ? _mm512_setzero_si512() : _mm512_load_si512(out + at);
      for (int i = 0; i < count; ++i) {
        const __m512i found = _mm512_maskz_permutex2var_epi32(near[i], first, places[i], second);
        most = _mm512_max_epu8(most, _mm512_mask_permutexvar_epi32(found, far[i], places[i], third));
      }
      _mm512_store_si512(out + at, most);
    }
    is_first = false;
  }
  if (is_first) __builtin_memset(out, 0, static_cast<std::size_t>(block_bytes));
}
#endif

inline void max_taps(const GatherTapsArgs& args, std::uint8_t* out) {
#if defined(__AVX512BW__)
  // Of every second position, taps that are further from each other reach a fourth block.
  if (is_row<1>(args)) return max_rows<1>(args, out);
  if (is_row<2>(args) && args.tap_xs.back() <= 2) return max_rows<2>(args, out);
#endif
  gather_taps(args);
  typedef std::uint8_t Bytes __attribute__((vector_size(kWordBytes), may_alias));
  const std::int64_t bytes = args.quads * kBlockBytes;
  const std::uint8_t* const taps = args.out;
  for (std::int64_t at = 0; at < bytes; at += kWordBytes) {
    Bytes most = *reinterpret_cast<const Bytes*>(taps + at);
    for (std::size_t tap = 1; tap < args.tap_ys.size(); ++tap) {
      const Bytes value = *reinterpret_cast<const Bytes*>(taps + static_cast<std::int64_t>(tap) * bytes + at);
      most = value > most ? value : most;
    }
    *reinterpret_cast<Bytes*>(out + at) = most;
  }
}

inline void sum_positions(const SumPositionsArgs& args) {
  const std::int64_t end = args.first + args.count;
  Words totals[kQuad]{};
  for (std::int64_t block = args.first / kQuadBlock; block * kQuadBlock < end; ++block) {
    const std::uint8_t* const from = args.in + block * args.block_bytes;
    const std::int64_t low = args.first - block * kQuadBlock;
    const std::int64_t high = end - block * kQuadBlock;
    for (std::int64_t lane = 0; lane < kQuadBlock; lane += kWordLanes) {
      if (lane >= low && lane + kWordLanes <= high) {
        const Words words = load_words(from + lane * kQuad);
#pragma GCC unroll 4
        for (int k = 0; k < kQuad; ++k) totals[k] += words >> (8 * k) & 0xffU;
        continue;
      }
      for (std::int64_t own = lane < low ? low : lane; own < lane + kWordLanes && own < high; ++own) {
        for (std::int64_t k = 0; k < kQuad; ++k) args.sums[k] += from[own * kQuad + k];
      }
    }
  }
  for (int k = 0; k < kQuad; ++k) {
    for (int lane = 0; lane < kWordLanes; ++lane) args.sums[k] += static_cast<std::int32_t>(totals[k][lane]);
  }
}

}  // namespace sift::cpu::SIFT_ISA
