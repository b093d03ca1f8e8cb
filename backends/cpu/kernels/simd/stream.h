// Few rows of activations: the weights are read once, in order, and that is what takes the time.
#pragma once

#include "../kernel_table.h"
#include "vec.h"

namespace sift::cpu::SIFT_ISA {

// `Width` activations at a time, `Chains` non-zeros in flight: a single sum would wait for its own latency.
template <int Width, int Chains>
void stream_of_width(const StreamArgs& args) {
  typedef float Lanes __attribute__((vector_size(Width * 4), aligned(4), may_alias));
  for (std::uint32_t row = args.row_begin; row < args.row_end; ++row) {
    std::uint32_t i = args.starts[row];
    const std::uint32_t end = args.starts[row + 1];
    Lanes sums[Chains]{};
    const auto operand = [&](std::uint32_t at) {
      return *reinterpret_cast<const Lanes*>(args.x + std::size_t{args.columns[at]} * Width);
    };
    for (; i + Chains <= end; i += Chains) {
#pragma GCC unroll 8
      for (std::uint32_t c = 0; c < Chains; ++c) sums[c] += args.values[i + c] * operand(i + c);
    }
    for (; i < end; ++i) sums[0] += args.values[i] * operand(i);
#pragma GCC unroll 8
    for (int c = 1; c < Chains; ++c) sums[0] += sums[c];
    Lanes* const acc = reinterpret_cast<Lanes*>(args.acc + std::size_t{row} * Width);
    *acc = args.bias != nullptr ? sums[0] + args.bias[row] : *acc + sums[0];
  }
}

inline void stream_one(const StreamArgs& args) {
  constexpr int kChains = 8;
  for (std::uint32_t row = args.row_begin; row < args.row_end; ++row) {
    std::uint32_t i = args.starts[row];
    const std::uint32_t end = args.starts[row + 1];
    float sums[kChains]{};
    for (; i + kChains <= end; i += kChains) {
#pragma GCC unroll 8
      for (std::uint32_t c = 0; c < kChains; ++c) sums[c] += args.values[i + c] * args.x[args.columns[i + c]];
    }
    for (; i < end; ++i) sums[0] += args.values[i] * args.x[args.columns[i]];
    float sum = 0;
    for (const float part : sums) sum += part;
    args.acc[row] = (args.bias != nullptr ? args.bias[row] : args.acc[row]) + sum;
  }
}

inline void stream(const StreamArgs& args) {
  switch (args.width) {
    case 1: return stream_one(args);
    case 4: return stream_of_width<4, 4>(args);
    case 8: return stream_of_width<8, kVecLanes >= 8 ? 4 : 2>(args);
    default: return stream_of_width<16, kVecLanes >= 8 ? 4 : 1>(args);
  }
}

}  // namespace sift::cpu::SIFT_ISA
