// What the taps of a window read of quads, which lie as they are multiplied: 16 positions side by side.
#pragma once

#include "simd/int8/kernel_table.h"
#include "simd/int8/lanes.h"

namespace sift::cpu::SIFT_ISA {

// Where the lanes of one tap come from; -1 outside of the image.
struct TapSources {
  alignas(64) std::int32_t lanes[kQuadBlock];
  std::int32_t first;  // of those inside, which ascend
  std::int32_t last;   // negative where there is none
};

// Unsigned: negative rows and columns are large ones, and positions outside of the image may run over.
[[gnu::always_inline]] inline TapSources sources_of(const GatherTapsArgs& args, std::int32_t y, std::int32_t x) {
  TapSources sources;
  const auto height = static_cast<std::uint32_t>(args.height);
  const auto width = static_cast<std::uint32_t>(args.width);
  const std::uint32_t distance = static_cast<std::uint32_t>(y) * width + static_cast<std::uint32_t>(x);
  std::uint32_t inside = 0;
#if defined(__AVX512F__)
  const auto spread = [](std::uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); };
  const __m512i ys = _mm512_add_epi32(_mm512_loadu_si512(args.ys), _mm512_set1_epi32(y));
  const __m512i xs = _mm512_add_epi32(_mm512_loadu_si512(args.xs), _mm512_set1_epi32(x));
  const __mmask16 rows = _mm512_cmplt_epu32_mask(ys, spread(height));
  const __mmask16 mask = _mm512_mask_cmplt_epu32_mask(rows, xs, spread(width));
  const __m512i positions = _mm512_add_epi32(_mm512_loadu_si512(args.positions), spread(distance));
  _mm512_store_si512(sources.lanes, _mm512_mask_blend_epi32(mask, _mm512_set1_epi32(-1), positions));
  inside = mask;
#else
  for (int lane = 0; lane < kQuadBlock; ++lane) {
    const std::uint32_t at_y = static_cast<std::uint32_t>(args.ys[lane]) + static_cast<std::uint32_t>(y);
    const std::uint32_t at_x = static_cast<std::uint32_t>(args.xs[lane]) + static_cast<std::uint32_t>(x);
    const bool is_inside = (at_y < height) & (at_x < width);
    const auto position = static_cast<std::int32_t>(static_cast<std::uint32_t>(args.positions[lane]) + distance);
    sources.lanes[lane] = is_inside ? position : -1;
    inside |= static_cast<std::uint32_t>(is_inside) << lane;
  }
#endif
  sources.first = inside == 0 ? 0 : sources.lanes[__builtin_ctz(inside)];
  sources.last = inside == 0 ? -1 : sources.lanes[31 - __builtin_clz(inside)];
  return sources;
}

#if defined(__AVX512F__)
// Each of 16 bits to every second of 32.
[[gnu::always_inline]] inline std::uint32_t spread_bits(std::uint32_t bits) {
  bits = (bits | bits << 8) & 0x00ff00ffU;
  bits = (bits | bits << 4) & 0x0f0f0f0fU;
  bits = (bits | bits << 2) & 0x33333333U;
  return (bits | bits << 1) & 0x55555555U;
}

template <int Step>
[[gnu::always_inline]] inline bool has_step(const GatherTapsArgs& args) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i steps = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(Step));
  const __m512i expected = _mm512_add_epi32(steps, _mm512_set1_epi32(args.positions[0]));
  return _mm512_cmpeq_epi32_mask(_mm512_loadu_si512(args.positions), expected) == 0xffff;
}

// Images of one quad of channels, as first layers read: their positions are adjacent words, of which lanes take every
// one (Step 1) or every second.
template <int Step>
void gather_words(const GatherTapsArgs& args) {
  const __m512i all_ys = _mm512_loadu_si512(args.ys);
  const __m512i all_xs = _mm512_loadu_si512(args.xs);
  const __m512i height = _mm512_set1_epi32(args.height);
  const __m512i width = _mm512_set1_epi32(args.width);
  const __m512i fill = _mm512_set1_epi32(static_cast<int>(args.fill * 0x01010101U));
  const __m512i every_second = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  std::uint8_t* out = args.out;
  for (std::size_t tap = 0; tap < args.tap_ys.size(); ++tap, out += kBlockBytes) {
    const std::int32_t y = args.tap_ys[tap];
    const std::int32_t x = args.tap_xs[tap];
    const __mmask16 rows = _mm512_cmplt_epu32_mask(_mm512_add_epi32(all_ys, _mm512_set1_epi32(y)), height);
    const __mmask16 inside = _mm512_mask_cmplt_epu32_mask(rows, _mm512_add_epi32(all_xs, _mm512_set1_epi32(x)), width);
    // Lanes outside are not read: the first one's position may be outside of the tensor.
    const std::ptrdiff_t first = std::ptrdiff_t{args.positions[0]} + std::ptrdiff_t{y} * args.width + x;
    const auto from = reinterpret_cast<std::uintptr_t>(args.in) + static_cast<std::uintptr_t>(first * kQuad);
    const auto* const words = reinterpret_cast<const std::uint8_t*>(from);
    if constexpr (Step == 1) {
      _mm512_store_si512(out, _mm512_mask_loadu_epi32(fill, inside, words));
    } else {
      const std::uint32_t bits = inside == 0xffff ? 0x55555555U : spread_bits(inside);
      const __m512i low = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(bits), words);
      const auto* const next = reinterpret_cast<const std::uint8_t*>(from + kBlockBytes);
      const __m512i high = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(bits >> 16), next);
      const __m512i read = _mm512_permutex2var_epi32(low, every_second, high);
      _mm512_store_si512(out, _mm512_mask_blend_epi32(inside, fill, read));
    }
  }
}
#endif

inline void gather_taps(const GatherTapsArgs& args) {
#if defined(__AVX512F__)
  if (args.quads == 1 && has_step<1>(args)) return gather_words<1>(args);
  if (args.quads == 1 && has_step<2>(args)) return gather_words<2>(args);
#endif
  std::uint8_t* out = args.out;
  const std::ptrdiff_t block_bytes = args.quads * kBlockBytes;
  const Words fill = splat(args.fill * 0x01010101U);
  for (std::size_t tap = 0; tap < args.tap_ys.size(); ++tap, out += block_bytes) {
    const TapSources sources = sources_of(args, args.tap_ys[tap], args.tap_xs[tap]);
#if defined(__AVX512F__)
    const auto no_value = reinterpret_cast<__m512i>(fill);
    const __m512i lanes = _mm512_load_si512(sources.lanes);
    const __m512i blocks = _mm512_srai_epi32(lanes, 4);
    bool filled = false;  // whether `out` is what earlier blocks have left
    for (std::int32_t block = sources.first >> 4; block <= sources.last >> 4; ++block) {
      const __mmask16 mask = _mm512_cmpeq_epi32_mask(blocks, _mm512_set1_epi32(block));
      if (mask == 0) continue;
      const std::uint8_t* const from = args.in + block * block_bytes;
      // Most windows read two blocks: both at once, so that nothing is stored twice.
      const __mmask16 next = _mm512_cmpeq_epi32_mask(blocks, _mm512_set1_epi32(block + 1));
      const std::uint8_t* const from_next = next == 0 ? from : from + block_bytes;
      for (std::ptrdiff_t at = 0; at < block_bytes; at += kBlockBytes) {
        __m512i value = filled ? _mm512_load_si512(out + at) : no_value;
        value = _mm512_mask_permutexvar_epi32(value, mask, lanes, _mm512_load_si512(from + at));
        value = _mm512_mask_permutexvar_epi32(value, next, lanes, _mm512_load_si512(from_next + at));
        _mm512_store_si512(out + at, value);
      }
      filled = true;
      if (next != 0) ++block;
    }
    if (filled) continue;
    for (std::ptrdiff_t at = 0; at < block_bytes; at += kWordBytes) store_words(out + at, fill);
#else
    for (std::ptrdiff_t at = 0; at < block_bytes; at += kWordBytes) store_words(out + at, fill);
    for (int lane = 0; lane < kQuadBlock; ++lane) {
      const std::int32_t position = sources.lanes[lane];
      if (position < 0) continue;
      const std::uint8_t* const from = args.in + position / 16 * block_bytes + position % 16 * kQuad;
      for (std::ptrdiff_t at = 0; at < block_bytes; at += kBlockBytes) {
        __builtin_memcpy(out + at + lane * kQuad, from + at, kQuad);
      }
    }
#endif
  }
}

inline void max_taps(const std::uint8_t* taps, std::int64_t count, std::int64_t quads, std::uint8_t* out) {
  typedef std::uint8_t Bytes __attribute__((vector_size(kWordBytes), may_alias));
  const std::int64_t bytes = quads * kBlockBytes;
  for (std::int64_t at = 0; at < bytes; at += kWordBytes) {
    Bytes most = *reinterpret_cast<const Bytes*>(taps + at);
    for (std::int64_t tap = 1; tap < count; ++tap) {
      const Bytes value = *reinterpret_cast<const Bytes*>(taps + tap * bytes + at);
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
