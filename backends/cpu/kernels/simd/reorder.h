// Converts between 16 rows of floats and one row of blocks: a 16 x count transpose, and back.
#pragma once

#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512F__)
// Transposes 16 x 16 in place, in four rounds of interleaving. Each round doubles the length of ordered parts.
[[gnu::always_inline]] inline void transpose_block(__m512 (&r)[16]) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto low = [&](int a, int b) {
      return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[a]), _mm512_castps_pd(t[b])));
    };
    const auto high = [&](int a, int b) {
      return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[a]), _mm512_castps_pd(t[b])));
    };
    r[4 * i] = low(4 * i, 4 * i + 2);
    r[4 * i + 1] = high(4 * i, 4 * i + 2);
    r[4 * i + 2] = low(4 * i + 1, 4 * i + 3);
    r[4 * i + 3] = high(4 * i + 1, 4 * i + 3);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0x88);
    r[4 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0x88);
    r[8 + i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0xdd);
    r[12 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0xdd);
  }
}
#endif

// out[i][lane] = in[lane * stride + i]; lanes from `rows` on become zero.
inline void interleave(const float* in, std::ptrdiff_t stride, std::int64_t count, int rows, float* out,
                       [[maybe_unused]] bool non_temporal) {
  std::int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + kBlock <= count; i += kBlock) {
    __m512 block[16];
#pragma GCC unroll 16
    for (int lane = 0; lane < kBlock; ++lane) {
      block[lane] = lane < rows ? _mm512_loadu_ps(in + lane * stride + i) : _mm512_setzero_ps();
    }
    transpose_block(block);
#pragma GCC unroll 16
    for (int lane = 0; lane < kBlock; ++lane) {
      float* const at = out + (i + lane) * kBlock;
      non_temporal ? _mm512_stream_ps(at, block[lane]) : _mm512_store_ps(at, block[lane]);
    }
  }
#endif
  for (; i < count; ++i) {
    for (int lane = 0; lane < kBlock; ++lane) out[i * kBlock + lane] = lane < rows ? in[lane * stride + i] : 0.0F;
  }
}

// out[lane * stride + i] = in[i][lane], for the first `rows` lanes.
inline void deinterleave(const float* in, std::ptrdiff_t stride, std::int64_t count, int rows, float* out,
                         [[maybe_unused]] bool non_temporal) {
  std::int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + kBlock <= count; i += kBlock) {
    __m512 block[16];
#pragma GCC unroll 16
    for (int lane = 0; lane < kBlock; ++lane) block[lane] = _mm512_load_ps(in + (i + lane) * kBlock);
    transpose_block(block);
#pragma GCC unroll 16
    for (int lane = 0; lane < kBlock; ++lane) {
      float* const at = out + lane * stride + i;
      if (lane < rows) non_temporal ? _mm512_stream_ps(at, block[lane]) : _mm512_storeu_ps(at, block[lane]);
    }
  }
#endif
  // One line of the rows at a time: if rows are a multiple of a page apart, a cache cannot hold a line of each.
  for (; i + kBlock <= count; i += kBlock) {
    for (int lane = 0; lane < rows; ++lane) {
#pragma GCC unroll 16
      for (int at = 0; at < kBlock; ++at) out[lane * stride + i + at] = in[(i + at) * kBlock + lane];
    }
  }
  for (; i < count; ++i) {
    for (int lane = 0; lane < rows; ++lane) out[lane * stride + i] = in[i * kBlock + lane];
  }
}

// Rows are short: the rest after whole vectors is one more vector, which overlaps the last one.
inline void copy_rows(CopyRowsArgs args) {
  const std::int64_t whole = args.width / kVecLanes * kVecLanes;
  const bool overlaps = whole > 0 && whole < args.width;
  const std::int64_t last = overlaps ? args.width - kVecLanes : whole;
  const float* from = args.from;
  float* to = args.to;
  for (std::int64_t row = 0; row < args.rows; ++row, from += args.from_pitch, to += args.to_pitch) {
    for (std::int64_t i = 0; i < whole; i += kVecLanes) store_unaligned(to + i, load_unaligned(from + i));
    if (overlaps) {
      store_unaligned(to + last, load_unaligned(from + last));
    } else if (whole < args.width) {
      const auto lanes = static_cast<int>(args.width);
      store_lanes(to, load_lanes(from, lanes), lanes);
    }
  }
}

#if defined(__AVX512F__)
inline void split_rows(CopyRowsArgs args, float* odd) {
  constexpr std::int64_t kPair = 2 * kBlock;
  const __m512i evens = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odds = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  const std::int64_t whole = args.width / kPair * kPair;
  const auto rest = static_cast<std::uint32_t>(args.width - whole);
  const std::uint32_t read = (1U << rest) - 1U;
  const auto write_even = static_cast<__mmask16>((1U << (rest + 1) / 2) - 1U);
  const auto write_odd = static_cast<__mmask16>((1U << rest / 2) - 1U);
  const float* from = args.from;
  float* even = args.to;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    for (std::int64_t x = 0; x < whole; x += kPair) {
      const __m512 low = _mm512_loadu_ps(from + x);
      const __m512 high = _mm512_loadu_ps(from + x + kBlock);
      _mm512_storeu_ps(even + x / 2, _mm512_permutex2var_ps(low, evens, high));
      _mm512_storeu_ps(odd + x / 2, _mm512_permutex2var_ps(low, odds, high));
    }
    if (rest != 0) {
      const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(read), from + whole);
      const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(read >> kBlock), from + whole + kBlock);
      _mm512_mask_storeu_ps(even + whole / 2, write_even, _mm512_permutex2var_ps(low, evens, high));
      _mm512_mask_storeu_ps(odd + whole / 2, write_odd, _mm512_permutex2var_ps(low, odds, high));
    }
    from += args.from_pitch;
    even += args.to_pitch;
    odd += args.to_pitch;
  }
}
#else
inline void split_rows(CopyRowsArgs args, float* odd) {
  const float* from = args.from;
  float* even = args.to;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const std::int64_t pairs = args.width / 2;
    for (std::int64_t i = 0; i < pairs; ++i) {
      even[i] = from[2 * i];
      odd[i] = from[2 * i + 1];
    }
    if (args.width % 2 != 0) even[pairs] = from[args.width - 1];
    from += args.from_pitch;
    even += args.to_pitch;
    odd += args.to_pitch;
  }
}
#endif

}  // namespace sift::cpu::SIFT_ISA
