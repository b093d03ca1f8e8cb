// What becomes of sums: bytes again, as onnxruntime's QLinearConv and QLinearAdd round them, or floats.
#pragma once

#include "simd/int8/kernel_table.h"
#include "simd/int8/lanes.h"
#include "simd/int8/quotients.h"

namespace sift::cpu::SIFT_ISA {

// Four bytes of each position, from numbers that differ from them by `zero_point`: where each is in [0, 255] in the
// end, no carry goes from one to the next.
struct PackedBytes {
  Words words;

  [[gnu::always_inline]] explicit PackedBytes(std::uint32_t zero_point) : words(splat(zero_point * 0x01010101U)) {}
  [[gnu::always_inline]] void add(Ints value, int k) { words += reinterpret_cast<Words>(value) << (8 * k); }
};

enum class Added { nothing, bytes, numbers };

// `Rows` rows, the last of which may be fewer than a quad.
template <Added What, bool Divides, int Rows>
[[gnu::always_inline]] inline void requantize_quad(const RequantizeArgs& args, const Quotients& quotients,
                                                   std::int64_t first) {
  constexpr bool Adds = What != Added::nothing;
  const float own_bound = Adds ? 255.0F : args.high;
  const Floats own_low = splat((Adds ? 0.0F : args.low) - args.zero_point);
  const Floats own_high = splat(own_bound - args.zero_point);
  const auto zero_point = static_cast<std::uint32_t>(args.zero_point);
#pragma GCC unroll 4
  for (int v = 0; v < kWordVecs; ++v) {
    const std::int32_t* const from = args.sums + first * kQuadBlock + v * kWordLanes;
    const std::int64_t at = first / kQuad * kBlockBytes + v * kWordBytes;
    PackedBytes packed(Adds ? 0 : zero_point);
    Words other{};
    if constexpr (What == Added::bytes) other = load_words(args.other + at);
#pragma GCC unroll 4
    for (int k = 0; k < Rows; ++k) {
      const Ints sums = reinterpret_cast<Ints>(load_words(from + k * kQuadBlock));
      const Floats product = to_floats(sums) * args.multipliers[first + k];
      Ints value =
          Divides ? quotients.rounded(product, own_low, own_high) : round_to_ints(clamp(product, own_low, own_high));
      if constexpr (Adds) {
        const Floats own = to_floats(value + static_cast<std::int32_t>(zero_point));
        Floats rest;
        if constexpr (What == Added::bytes) {
          const Floats added = to_floats(reinterpret_cast<Ints>(other >> (8 * k) & 0xffU));
          rest = fma(added, splat(args.addition->other_factor), splat(args.addition->shift));
        } else {
          rest = splat(args.rests[first + k]);
        }
        const Floats sum = fma(own, splat(args.addition->own_factor), rest);
        value = round_to_ints(clamp(sum, splat(args.low), splat(args.high)));
      }
      packed.add(value, k);
    }
    // Bytes of rows past the last are zero.
    if constexpr (Rows < kQuad) packed.words &= (1U << (8 * Rows)) - 1U;
    store_words(args.out + at, packed.words);
  }
}

template <Added What, bool Divides>
[[gnu::always_inline]] inline void requantize_quads(const RequantizeArgs& args) {
  const Quotients quotients(args.divisor);
  std::int64_t first = 0;
  for (; first + kQuad <= args.rows; first += kQuad) requantize_quad<What, Divides, 4>(args, quotients, first);
  if (args.rows - first == 3) requantize_quad<What, Divides, 3>(args, quotients, first);
  if (args.rows - first == 2) requantize_quad<What, Divides, 2>(args, quotients, first);
  if (args.rows - first == 1) requantize_quad<What, Divides, 1>(args, quotients, first);
}

inline void requantize(const RequantizeArgs& args) {
  const bool divides = args.divisor != 1;
  if (args.addition == nullptr) {
    return divides ? requantize_quads<Added::nothing, true>(args) : requantize_quads<Added::nothing, false>(args);
  }
  if (args.rests == nullptr) {
    return divides ? requantize_quads<Added::bytes, true>(args) : requantize_quads<Added::bytes, false>(args);
  }
  return divides ? requantize_quads<Added::numbers, true>(args) : requantize_quads<Added::numbers, false>(args);
}

// By value: behind a reference, arguments would be read again after every store.
inline void dequantize_rows(const DequantizeArgs args) {  // NOLINT
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const Floats multiplier = splat(args.common * args.multipliers[row]);
    const Floats bias = splat(args.bias == nullptr ? 0.0F : args.bias[row]);
    for (int v = 0; v < kWordVecs; ++v) {
      const std::int32_t* const from = args.sums + row * kQuadBlock + v * kWordLanes;
      const std::ptrdiff_t at = row * args.stride + v * kWordLanes;
      Floats value = to_floats(reinterpret_cast<Ints>(load_words(from))) * multiplier;
      if (args.bias != nullptr) value += bias;
      if (args.other != nullptr) {
        const std::ptrdiff_t place = row * args.other_stride + v * kWordLanes;
        value += *reinterpret_cast<const UnalignedFloats*>(args.other + place);
      }
      *reinterpret_cast<UnalignedFloats*>(args.out + at) = clamp(value, splat(args.low), splat(args.high));
    }
  }
}

inline void dequantize(const DequantizeArgs& args) { dequantize_rows(args); }

inline void add(const AddQuadsArgs& args) {
  const Floats low = splat(args.low);
  const Floats high = splat(args.high);
  for (std::int64_t at = 0; at < args.blocks * kBlockBytes; at += kWordBytes) {
    const Words a = load_words(args.a + at);
    const Words b = load_words(args.b + at);
    PackedBytes packed(0);
#pragma GCC unroll 4
    for (int k = 0; k < kQuad; ++k) {
      const Floats own = to_floats(reinterpret_cast<Ints>(a >> (8 * k) & 0xffU));
      const Floats other = to_floats(reinterpret_cast<Ints>(b >> (8 * k) & 0xffU));
      Floats value = fma(other, splat(args.addition.other_factor), splat(args.addition.shift));
      value = clamp(fma(own, splat(args.addition.own_factor), value), low, high);
      packed.add(round_to_ints(value), k);
    }
    store_words(args.out + at, packed.words);
  }
}

#if defined(__AVX512BW__)
// A table of 256 bytes, as 128 words in four registers.
struct ByteTable {
  explicit ByteTable(const std::uint8_t* table) {
    for (int i = 0; i < 4; ++i) words[i] = _mm512_loadu_si512(table + 64 * i);
  }

  // Entries of words that are bytes.
  [[gnu::always_inline]] __m512i at(__m512i bytes) const {
    const __m512i places = _mm512_srli_epi16(bytes, 1);
    const __m512i low = _mm512_permutex2var_epi16(words[0], places, words[1]);
    const __m512i high = _mm512_permutex2var_epi16(words[2], places, words[3]);
    const __m512i both = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(bytes, _mm512_set1_epi16(0x80)), low, high);
    const __m512i shift = _mm512_slli_epi16(_mm512_and_si512(bytes, _mm512_set1_epi16(1)), 3);
    return _mm512_and_si512(_mm512_srlv_epi16(both, shift), _mm512_set1_epi16(0xff));
  }

  __m512i words[4];
};
#endif

// `count` is a multiple of 64.
inline void look_up(const std::uint8_t* in, const std::uint8_t* table, std::int64_t count, std::uint8_t* out) {
#if defined(__AVX512BW__)
  const ByteTable entries(table);
  for (std::int64_t i = 0; i < count; i += kBlockBytes) {
    const __m512i bytes = _mm512_loadu_si512(in + i);
    const __m512i even = entries.at(_mm512_and_si512(bytes, _mm512_set1_epi16(0xff)));
    const __m512i odd = entries.at(_mm512_srli_epi16(bytes, 8));
    _mm512_storeu_si512(out + i, _mm512_or_si512(even, _mm512_slli_epi16(odd, 8)));
  }
#else
  for (std::int64_t i = 0; i < count; ++i) out[i] = table[in[i]];
#endif
}

}  // namespace sift::cpu::SIFT_ISA
