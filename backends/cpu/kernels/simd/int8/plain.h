// Quads from plain values and back: floats, which are rounded on the way, and bytes.
#pragma once

#include "simd/int8/kernel_table.h"
#include "simd/int8/lanes.h"
#include "simd/int8/quotients.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX2__) && !defined(__AVX512F__)
// All bits of the first `count` of eight lanes.
[[gnu::always_inline]] inline __m256i first_lanes(std::int64_t count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
}
#endif

// The first `count` of sixteen values, and zeros; nothing behind them is read.
[[gnu::always_inline]] inline void load_first(const float* in, std::int64_t count, float* values) {
#if defined(__AVX512F__)
  _mm512_storeu_ps(values, _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1U), in));
#elif defined(__AVX2__)
  _mm256_storeu_ps(values, _mm256_maskload_ps(in, first_lanes(count)));
  _mm256_storeu_ps(values + 8, _mm256_maskload_ps(in + 8, first_lanes(count - 8)));
#else
  for (std::int64_t lane = 0; lane < kQuadBlock; ++lane) values[lane] = lane < count ? in[lane] : 0;
#endif
}

[[gnu::always_inline]] inline void store_first(const float* values, std::int64_t count, float* out) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(out, static_cast<__mmask16>((1U << count) - 1U), _mm512_loadu_ps(values));
#elif defined(__AVX2__)
  _mm256_maskstore_ps(out, first_lanes(count), _mm256_loadu_ps(values));
  _mm256_maskstore_ps(out + 8, first_lanes(count - 8), _mm256_loadu_ps(values + 8));
#else
  for (std::int64_t lane = 0; lane < count; ++lane) out[lane] = values[lane];
#endif
}

// The values of one channel, those of a block's positions; 0 past the last.
[[gnu::always_inline]] inline void load_channel(const float* in, const PlainBlock& block, float* values) {
  if (block.contiguous && block.count == kQuadBlock) {
    __builtin_memcpy(values, in + block.lanes[0], kQuadBlock * sizeof(float));
    return;
  }
  if (block.contiguous) return load_first(in + block.lanes[0], block.count, values);
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
      } else if (block.contiguous) {
        store_first(values, block.count, to + block.lanes[0]);
      } else {
        for (std::int64_t lane = 0; lane < block.count; ++lane) to[block.lanes[lane]] = values[lane];
      }
    }
  }
}

// Four channels of each position next to each other, as rows of features have them: whole words.
[[gnu::always_inline]] inline bool has_whole_words(const PlainBlock& block, std::int64_t first) {
  return block.channel_stride == 1 && first + kQuad <= block.channels;
}

inline void from_bytes(const std::uint8_t* in, const PlainBlock& block, std::uint8_t flip, std::uint8_t* out) {
  const std::uint32_t flips = flip * 0x01010101U;
  for (std::int64_t first = 0; first < block.channels; first += kQuad, out += kBlockBytes) {
    if (has_whole_words(block, first)) {
      for (std::int64_t lane = 0; lane < kQuadBlock; ++lane) {
        std::uint32_t word = flips;
        if (lane < block.count) __builtin_memcpy(&word, in + block.lanes[lane] + first, sizeof word);
        word ^= flips;
        __builtin_memcpy(out + lane * kQuad, &word, sizeof word);
      }
      continue;
    }
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
  const std::uint32_t flips = flip * 0x01010101U;
  for (std::int64_t first = 0; first < block.channels; first += kQuad, in += kBlockBytes) {
    if (has_whole_words(block, first)) {
      for (std::int64_t lane = 0; lane < block.count; ++lane) {
        std::uint32_t word;
        __builtin_memcpy(&word, in + lane * kQuad, sizeof word);
        word ^= flips;
        __builtin_memcpy(out + block.lanes[lane] + first, &word, sizeof word);
      }
      continue;
    }
    for (std::int64_t k = 0; k < kQuad && first + k < block.channels; ++k) {
      const std::int64_t channel = (first + k) * block.channel_stride;
      for (std::int64_t lane = 0; lane < block.count; ++lane) {
        out[block.lanes[lane] + channel] = static_cast<std::uint8_t>(in[lane * kQuad + k] ^ flip);
      }
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

inline void extremes_of_lanes(const float* in, std::int64_t count, std::int64_t lanes, float& least, float& most) {
  // What idle lanes hold, which may be anything, becomes 0.
  Words kept[kWordVecs];
  for (int lane = 0; lane < kQuadBlock; ++lane) kept[lane / kWordLanes][lane % kWordLanes] = lane < lanes ? ~0U : 0U;
  Floats low = splat(least);
  Floats high = splat(most);
  for (std::int64_t i = 0; i < count; ++i, in += kQuadBlock) {
#pragma GCC unroll 4
    for (int v = 0; v < kWordVecs; ++v) {
      const Words bits = reinterpret_cast<Words>(*reinterpret_cast<const UnalignedFloats*>(in + v * kWordLanes));
      const auto value = reinterpret_cast<Floats>(bits & kept[v]);
      low = value < low ? value : low;
      high = value > high ? value : high;
    }
  }
  for (int lane = 0; lane < kWordLanes; ++lane) {
    least = low[lane] < least ? low[lane] : least;
    most = high[lane] > most ? high[lane] : most;
  }
}

}  // namespace sift::cpu::SIFT_ISA
