// Windows over single channels: depthwise convolution, sums for average pooling, maxima.
#pragma once

#include "simd/activation.h"
#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

template <WindowKind Window, int Blocks>
[[gnu::always_inline]] inline void window_blocks(const WindowArgs& args, const float* in,
                                                 Vec (&acc)[Blocks * kVecsPerBlock]) {
#pragma GCC unroll 16
  for (Vec& value : acc) value = splat(args.start);
  for (std::uint32_t tap = 0; tap < args.tap_count; ++tap) {
    const float* const from = in + args.taps[tap];
    Vec weight{};
    if constexpr (Window == WindowKind::weighted_sum) weight = splat(args.weights[tap]);
#pragma GCC unroll 4
    for (int block = 0; block < Blocks; ++block) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecsPerBlock; ++v) {
        Vec& value = acc[block * kVecsPerBlock + v];
        const Vec x = load_unaligned(from + block * args.step + v * kVecLanes);
        if constexpr (Window == WindowKind::weighted_sum) {
          value += weight * x;
        } else if constexpr (Window == WindowKind::sum) {
          value += x;
        } else {
          value = max(value, x);
        }
      }
    }
  }
}

template <int Blocks>
[[gnu::always_inline]] inline void prefetch_next_row(const WindowArgs& args, const float* in) {
  // The addresses may be outside the tensor; prefetching them then has no effect.
  auto next = reinterpret_cast<std::uintptr_t>(in) + static_cast<std::uintptr_t>(args.ahead) * sizeof(float);
  const std::uintptr_t bytes = static_cast<std::uintptr_t>(Blocks * args.step) * sizeof(float);
  for (std::uint32_t row = 0; row < args.ahead_rows; ++row) {
    for (std::uintptr_t at = 0; at < bytes; at += kBlock * sizeof(float)) {
      __builtin_prefetch(reinterpret_cast<const void*>(next + at), 0, 2);
    }
    next += static_cast<std::uintptr_t>(args.ahead_pitch) * sizeof(float);
  }
}

// Rows of outputs whose sums fit the registers together with the weights of a square of taps; 0 if none do. With many
// registers, images of 7 pixels times a power of two have no remaining rows.
template <int Size>
inline constexpr int kSquareRows = kRegisters >= 32               ? (Size == 3 ? 7 : 4)
                                   : kMemoryOperands && Size == 3 ? 4
                                                                  : 0;

inline constexpr std::int64_t kLargestSquare = kSquareRows<5> > 0 ? 5 : kSquareRows<3> > 0 ? 3 : 0;

template <ActivationKind Kind>
struct Window {
  static void run(WindowKind window, WindowArgs args) {
    switch (window) {
      case WindowKind::weighted_sum: return run_kind<WindowKind::weighted_sum>(args);
      case WindowKind::sum: return run_kind<WindowKind::sum>(args);
      case WindowKind::maximum: return run_kind<WindowKind::maximum>(args);
    }
  }

  template <WindowKind Of>
  static void run_kind(WindowArgs args) {
    const float* in = args.in;
    float* out = args.out;
    std::uint32_t row = 0;
    if constexpr (Of == WindowKind::weighted_sum) {
      if (args.square == 3) row = run_squares<3>(args);
      if (args.square == 5) row = run_squares<5>(args);
      in += row * args.row_step;
      out += row * args.out_row_step;
    }
    for (; row < args.rows; ++row, in += args.row_step, out += args.out_row_step) run_row<Of>(args, in, out);
  }

  // Computes several rows of outputs at a time, which share their loads; most loads of neighbouring taps are in two
  // cache lines. Returns the number of computed rows.
  template <int Size>
  static std::uint32_t run_squares(const WindowArgs& args) {
    constexpr int kRows = kSquareRows<Size>;
    if constexpr (kRows == 0) {
      return 0;
    } else {
      const std::int64_t columns = std::int64_t{args.blocks - 1} * kBlock + args.last_lanes;
      Vec weights[Size * Size];
#pragma GCC unroll 32
      for (int tap = 0; tap < Size * Size; ++tap) weights[tap] = splat(args.weights[tap]);
      std::uint32_t row = 0;
      for (; row + kRows <= args.rows; row += kRows) {
        const float* const in = args.in + row * args.row_step;
        float* const out = args.out + row * args.out_row_step;
        for (std::int64_t x = 0; x < columns; x += kVecLanes) {
          square_rows<Size, kRows>(args, weights, in + x, out + x, static_cast<int>(columns - x));
        }
      }
      return row;
    }
  }

  template <int Size, int Rows>
  [[gnu::always_inline]] static void square_rows(const WindowArgs& args, const Vec* weights, const float* in,
                                                 float* out, int lanes) {
    Vec sums[Rows];
#pragma GCC unroll 8
    for (Vec& sum : sums) sum = splat(args.start);
#pragma GCC unroll 16
    for (int y = 0; y < Rows + Size - 1; ++y, in += args.row_step) {
#pragma GCC unroll 8
      for (int j = 0; j < Size; ++j) {
        const Vec x = load_unaligned(in + j);
#pragma GCC unroll 8
        for (int i = 0; i < Size; ++i) {
          if (y >= i && y - i < Rows) sums[y - i] += weights[i * Size + j] * x;
        }
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row, out += args.out_row_step) {
      const Vec value = activate<Kind>(sums[row], args.activation.a, args.activation.b);
      if (lanes >= kVecLanes) {
        store_unaligned(out, value);
      } else {
        store_lanes(out, value, lanes);
      }
    }
  }

  template <WindowKind Of>
  [[gnu::always_inline]] static void run_row(const WindowArgs& args, const float* in, float* out) {
    constexpr int kTogether = kVecsPerBlock == 1 ? 4 : 2;
    std::uint32_t block = 0;
    for (; block + kTogether <= args.blocks; block += kTogether) finish<Of, kTogether>(args, in, out, block);
    if (kTogether > 2 && block + 2 <= args.blocks) {
      finish<Of, 2>(args, in, out, block);
      block += 2;
    }
    for (; block < args.blocks; ++block) finish<Of, 1>(args, in, out, block);
  }

  template <WindowKind Of, int Blocks>
  [[gnu::always_inline]] static void finish(const WindowArgs& args, const float* in, float* out, std::uint32_t block) {
    prefetch_next_row<Blocks>(args, in + block * args.step);
    Vec acc[Blocks * kVecsPerBlock];
    window_blocks<Of, Blocks>(args, in + block * args.step, acc);
    const std::uint32_t before_last = args.blocks - 1 - block;
#pragma GCC unroll 16
    for (int v = 0; v < Blocks * kVecsPerBlock; ++v) {
      const auto number = static_cast<std::uint32_t>(v / kVecsPerBlock);
      const int within = v % kVecsPerBlock * kVecLanes;
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(block + number) * args.out_step + within;
      const int lanes = static_cast<int>(number == before_last ? args.last_lanes : args.lanes) - within;
      if (lanes <= 0) continue;
      const bool whole = lanes >= kVecLanes;
      Vec value = acc[v];
      if constexpr (Of == WindowKind::sum) {
        if (args.scales == nullptr) {
          value *= args.scale;
        } else {
          value *= whole ? load_unaligned(args.scales + at) : load_lanes(args.scales + at, lanes);
        }
      }
      value = activate<Kind>(value, args.activation.a, args.activation.b);
      if (whole && args.non_temporal) {
        store_non_temporal(out + at, value);
      } else if (whole) {
        store_unaligned(out + at, value);
      } else {
        store_lanes(out + at, value, lanes);
      }
    }
  }
};

inline void window(WindowKind kind, WindowArgs args) { with_activation<Window>(args.activation.kind, kind, args); }

}  // namespace sift::cpu::SIFT_ISA
