// Quads from plain values and back: floats, which are rounded on the way, and bytes.
#pragma once

#include "simd/int8/kernel_table.h"
#include "simd/int8/lanes.h"
#include "simd/int8/quotients.h"

namespace sift::cpu::SIFT_ISA {

// The values of one channel, those of a block's positions; 0 past the last.
[[gnu::always_inline]] inline void load_channel(const float* in, const PlainBlock& block, float* values) {
  if (block.contiguous && block.count == kQuadBlock) {
    __builtin_memcpy(values, in + block.lanes[0], kQuadBlock * sizeof(float));
    return;
  }
  for (std::int64_t lane = 0; lane < kQuadBlock; ++lane) values[lane] = lane < block.count ? in[block.lanes[lane]] : 0;
}

// By value: behind a reference, arguments would be read again after every store.
inline void quantize_blocks(const QuantizeArgs args) {  // NOLINT
  const Floats low = splat(-args.zero_point);
  const Floats high = splat(255.0F - args.zero_point);
  const auto zero = static_cast<std::int32_t>(args.zero_point);
  const Quotients quotients(args.scale);
  const std::int64_t channels = args.first.channels;
  std::uint8_t* out_quad = args.out;
  for (std::int64_t first = 0; first < channels; first += kQuad, out_quad += kBlockBytes) {
    for (std::int64_t block = 0; block < args.blocks; ++block) {
      const float* const from = args.in + first * args.first.channel_stride + block * kQuadBlock;
      Words packed[kWordVecs]{};
      for (int k = 0; k < kQuad && first + k < channels; ++k) {
        alignas(64) float values[kQuadBlock];
        load_channel(from + k * args.first.channel_stride, args.first, values);
#pragma GCC unroll 4
        for (int v = 0; v < kWordVecs; ++v) {
          const Floats value = *reinterpret_cast<const Floats*>(values + v * kWordLanes);
          packed[v] |= reinterpret_cast<Words>(quotients.rounded(value, low, high) + zero) << (8 * k);
        }
      }
      std::uint8_t* const to = out_quad + block * args.out_step;
      for (int v = 0; v < kWordVecs; ++v) store_words(to + v * kWordBytes, packed[v]);
    }
  }
}

inline void quantize(const QuantizeArgs& args) { quantize_blocks(args); }

inline void dequantize_bytes(const std::uint8_t* in, const PlainBlock& block, float scale, std::int32_t zero_point,
                             float* out) {
  for (std::int64_t first = 0; first < block.channels; first += kQuad, in += kBlockBytes) {
    for (int k = 0; k < kQuad && first + k < block.channels; ++k) {
      alignas(64) float values[kQuadBlock];
      for (int v = 0; v < kWordVecs; ++v) {
        const Ints stored = reinterpret_cast<Ints>(load_words(in + v * kWordBytes) >> (8 * k) & 0xffU);
        *reinterpret_cast<Floats*>(values + v * kWordLanes) = to_floats(stored - zero_point) * scale;
      }
      float* const to = out + (first + k) * block.channel_stride;
      if (block.contiguous && block.count == kQuadBlock) {
        __builtin_memcpy(to + block.lanes[0], values, sizeof values);
      } else {
        for (std::int64_t lane = 0; lane < block.count; ++lane) to[block.lanes[lane]] = values[lane];
      }
    }
  }
}

inline void from_bytes(const std::uint8_t* in, const PlainBlock& block, std::uint8_t flip, std::uint8_t* out) {
  for (std::int64_t first = 0; first < block.channels; first += kQuad, out += kBlockBytes) {
    for (std::int64_t lane = 0; lane < kQuadBlock; ++lane) {
      for (std::int64_t k = 0; k < kQuad; ++k) {
        const bool is_value = lane < block.count && first + k < block.channels;
        const std::int64_t channel = (first + k) * block.channel_stride;
        out[lane * kQuad + k] = is_value ? static_cast<std::uint8_t>(in[block.lanes[lane] + channel] ^ flip) : 0;
      }
    }
  }
}

inline void to_bytes(const std::uint8_t* in, const PlainBlock& block, std::uint8_t flip, std::uint8_t* out) {
  for (std::int64_t channel = 0; channel < block.channels; ++channel) {
    const std::uint8_t* const from = in + channel / kQuad * kBlockBytes + channel % kQuad;
    for (std::int64_t lane = 0; lane < block.count; ++lane) {
      out[block.lanes[lane] + channel * block.channel_stride] = static_cast<std::uint8_t>(from[lane * kQuad] ^ flip);
    }
  }
}

inline void extremes(const float* in, std::int64_t count, float& least, float& most) {
  Floats low = splat(least);
  Floats high = splat(most);
  std::int64_t i = 0;
  for (; i + kWordLanes <= count; i += kWordLanes) {
    const Floats value = *reinterpret_cast<const UnalignedFloats*>(in + i);
    low = value < low ? value : low;
    high = value > high ? value : high;
  }
  for (int lane = 0; lane < kWordLanes; ++lane) {
    least = low[lane] < least ? low[lane] : least;
    most = high[lane] > most ? high[lane] : most;
  }
  for (; i < count; ++i) {
    least = in[i] < least ? in[i] : least;
    most = in[i] > most ? in[i] : most;
  }
}

}  // namespace sift::cpu::SIFT_ISA
