// Assembles the lanes of a block from any positions, channel by channel.
#pragma once

#include "simd/kernel_table.h"
#include "simd/reorder.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// With at least this many runs, adjacent channels are transposed sixteen at a time.
inline constexpr std::int64_t kTurnedRuns = 6;

#if defined(__AVX512F__)
// Transposes sixteen rows of adjacent channels to sixteen channels of lanes; returns the number of copied channels.
inline std::int64_t rearrange_turned(const RearrangeArgs& args, const float* const (&rows)[kBlock], __mmask16 lanes) {
  std::int64_t c = 0;
  for (; c + kBlock <= args.channel_count; c += kBlock) {
    __m512 block[kBlock];
#pragma GCC unroll 16
    for (int lane = 0; lane < kBlock; ++lane) {
      block[lane] = rows[lane] != nullptr ? _mm512_loadu_ps(rows[lane] + c) : _mm512_setzero_ps();
    }
    transpose_block(block);
    float* to = args.out + c * args.out_step;
#pragma GCC unroll 16
    for (int i = 0; i < kBlock; ++i, to += args.out_step) _mm512_mask_storeu_ps(to, lanes, block[i]);
  }
  return c;
}

inline void rearrange(RearrangeArgs args) {
  __mmask16 masks[kBlock];
  const float* sources[kBlock];
  unsigned lanes = 0;
  for (std::int64_t i = 0; i < args.run_count; ++i) {
    const SourceRun& run = args.runs[i];
    const unsigned mask = ((1U << run.count) - 1U) << run.lane;
    masks[i] = static_cast<__mmask16>(mask);
    sources[i] = args.in + (run.source - run.lane);
    lanes |= mask;
  }
  const auto stored = static_cast<__mmask16>(lanes);
  std::int64_t c = 0;
  if (args.channels_adjacent && args.run_count >= kTurnedRuns) {
    const float* rows[kBlock] = {};
    for (std::int64_t i = 0; i < args.run_count; ++i) {
      const SourceRun& run = args.runs[i];
      for (int lane = 0; lane < run.count; ++lane) {
        rows[run.lane + lane] = args.in + run.source + lane + args.channels[0];
      }
    }
    c = rearrange_turned(args, rows, stored);
  }
  float* to = args.out + c * args.out_step;
  if (args.run_count == 1) {
    for (; c < args.channel_count; ++c, to += args.out_step) {
      _mm512_mask_storeu_ps(to, stored, _mm512_maskz_loadu_ps(masks[0], sources[0] + args.channels[c]));
    }
  } else if (args.run_count == 2) {
    for (; c < args.channel_count; ++c, to += args.out_step) {
      const __m512 first = _mm512_maskz_loadu_ps(masks[0], sources[0] + args.channels[c]);
      _mm512_mask_storeu_ps(to, stored, _mm512_mask_loadu_ps(first, masks[1], sources[1] + args.channels[c]));
    }
  } else {
    for (; c < args.channel_count; ++c, to += args.out_step) {
      __m512 value = _mm512_setzero_ps();
      for (std::int64_t i = 0; i < args.run_count; ++i) {
        value = _mm512_mask_loadu_ps(value, masks[i], sources[i] + args.channels[c]);
      }
      _mm512_mask_storeu_ps(to, stored, value);
    }
  }
}
#else
inline void rearrange(RearrangeArgs args) {
  if (args.run_count == 1 && args.runs[0].count == kBlock) {
    const float* const from = args.in + args.runs[0].source;
    for (std::int64_t c = 0; c < args.channel_count; ++c) {
      __builtin_memcpy(args.out + c * args.out_step, from + args.channels[c], kBlock * sizeof(float));
    }
    return;
  }
  for (std::int64_t i = 0; i < args.run_count; ++i) {
    const SourceRun& run = args.runs[i];
    const float* const from = args.in + run.source;
    float* to = args.out + run.lane;
    for (std::int64_t c = 0; c < args.channel_count; ++c, to += args.out_step) {
      for (int lane = 0; lane < run.count; ++lane) to[lane] = from[args.channels[c] + lane];
    }
  }
}
#endif

}  // namespace sift::cpu::SIFT_ISA
