// What becomes of sums: bytes again, as onnxruntime's QLinearConv and QLinearAdd round them, or floats.
#pragma once

#include "simd/int8/kernel_table.h"
#include "simd/int8/lanes.h"

namespace sift::cpu::SIFT_ISA {

template <bool Adds>
[[gnu::always_inline]] inline void requantize_quads(const RequantizeArgs& args) {
  const Floats own_low = splat((Adds ? 0.0F : args.low) - args.zero_point);
  const Floats own_high = splat((Adds ? 255.0F : args.high) - args.zero_point);
  const Floats low = splat(args.low);
  const Floats high = splat(args.high);
  for (std::int64_t first = 0; first < args.rows; first += kQuad) {
    for (int v = 0; v < kWordVecs; ++v) {
      const std::int32_t* const from = args.sums + first * kQuadBlock + v * kWordLanes;
      const std::int64_t at = first / kQuad * kBlockBytes + v * kWordBytes;
      Words other{};
      if constexpr (Adds) other = load_words(args.other + at);
      Words packed{};
#pragma GCC unroll 4
      for (int k = 0; k < kQuad; ++k) {
        if (first + k >= args.rows) break;
        const Ints sums = reinterpret_cast<Ints>(load_words(from + k * kQuadBlock));
        Floats value = clamp(to_floats(sums) * args.multipliers[first + k], own_low, own_high);
        value = round_half_even(value) + args.zero_point;
        if constexpr (Adds) {
          const Floats added = to_floats(reinterpret_cast<Ints>(other >> (8 * k) & 0xffU));
          const Floats rest = fma(added, splat(args.addition->other_factor), splat(args.addition->shift));
          value = clamp(fma(value, splat(args.addition->own_factor), rest), low, high);
        }
        packed |= rounded_byte(value) << (8 * k);
      }
      store_words(args.out + at, packed);
    }
  }
}

inline void requantize(const RequantizeArgs& args) {
  if (args.addition != nullptr) {
    requantize_quads<true>(args);
  } else {
    requantize_quads<false>(args);
  }
}

inline void dequantize(const DequantizeArgs& args) {
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const Floats multiplier = splat(args.common * args.multipliers[row]);
    const Floats bias = splat(args.bias == nullptr ? 0.0F : args.bias[row]);
    for (int v = 0; v < kWordVecs; ++v) {
      const std::int64_t at = row * kQuadBlock + v * kWordLanes;
      Floats value = to_floats(reinterpret_cast<Ints>(load_words(args.sums + at))) * multiplier;
      if (args.bias != nullptr) value += bias;
      *reinterpret_cast<Floats*>(args.out + at) = clamp(value, splat(args.low), splat(args.high));
    }
  }
}

inline void add(const AddQuadsArgs& args) {
  const Floats low = splat(args.low);
  const Floats high = splat(args.high);
  for (std::int64_t at = 0; at < args.blocks * kBlockBytes; at += kWordBytes) {
    const Words a = load_words(args.a + at);
    const Words b = load_words(args.b + at);
    Words packed{};
#pragma GCC unroll 4
    for (int k = 0; k < kQuad; ++k) {
      const Floats own = to_floats(reinterpret_cast<Ints>(a >> (8 * k) & 0xffU));
      const Floats other = to_floats(reinterpret_cast<Ints>(b >> (8 * k) & 0xffU));
      Floats value = fma(other, splat(args.addition.other_factor), splat(args.addition.shift));
      value = clamp(fma(own, splat(args.addition.own_factor), value), low, high);
      packed |= rounded_byte(value) << (8 * k);
    }
    store_words(args.out + at, packed);
  }
}

inline void look_up(const std::uint8_t* in, const std::uint8_t* table, std::int64_t count, std::uint8_t* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = table[in[i]];
}

}  // namespace sift::cpu::SIFT_ISA
