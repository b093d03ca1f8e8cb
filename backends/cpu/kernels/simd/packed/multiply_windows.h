// Blocks of sixteen rows of weights in windows of columns times few rows of x.
//
// Each lane looks its activations up in four registers, which hold the window's columns: two lookups in two registers
// each, and a choice between them. All rows of x share what is made of a stop's bytes.
#pragma once

#include <algorithm>

#include "simd/packed/expand.h"
#include "simd/packed/finish.h"
#include "simd/packed/operands.h"
#include "simd/packed/row_kernels.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Where there is nothing to look up with, and where x has what zeros of weights must not meet.
inline void multiply_windows_one_by_one(const PackedRowsArgs& args) {
  const std::ptrdiff_t x_floats = args.words * kWordColumns;
  for (std::int64_t row = args.row_begin; row < args.row_end; row += kWindowRows) {
    const std::int64_t rows = std::min(kWindowRows, args.row_end - row);
    for (int i = 0; i < args.x_rows; ++i) {
      const float* const x = args.x + i * x_floats;
      float sums[kWindowRows]{};
      for_each_in_windows(args.windows, row / kWindowRows, args.columns,
                          [&](std::int64_t lane, std::int64_t column, const std::byte* value)
                              __attribute__((always_inline)) { sums[lane] += float_at(args.type, value) * x[column]; });
      for (std::int64_t lane = 0; lane < rows; ++lane) finish(args, row + lane, i, sums[lane]);
    }
  }
}

#if defined(__AVX512F__)

inline constexpr std::ptrdiff_t kStopsAhead = 4096;

// Asks for the lines that begin within a stop's bytes, some stops ahead.
template <ValueType Type>
[[gnu::always_inline]] inline void prefetch_stop(const std::byte* stop, std::size_t number) {
  // Two lines, or a line and a half or two and a half: every other stop has one line more.
  constexpr std::int64_t kHalfLines = stop_bytes(Type) / 32;
  const std::int64_t lines = (kHalfLines + static_cast<std::int64_t>(number & 1U)) / 2;
#pragma GCC unroll 4
  for (std::int64_t line = 0; line < lines; ++line) __builtin_prefetch(stop + kStopsAhead + 64 * line, 0, 3);
}

// What a lane's weight of a step is looked up with, and what it is multiplied by.
struct WindowStep {
  __m512i places;  // of which lookups take the lowest five bits
  __mmask16 upper;
  __m512 weights;
};

template <ValueType Type>
[[gnu::always_inline]] inline void load_steps(const std::byte* stop, WindowStep (&steps)[steps_of(Type)]) {
  if constexpr (Type == ValueType::int8) {
    const __m512i places = _mm512_loadu_si512(stop);
    const __m512i values = _mm512_loadu_si512(stop + stop_weights(Type));
#pragma GCC unroll 4
    for (int step = 0; step < steps_of(Type); ++step) {
      steps[step].places = _mm512_srli_epi32(places, 8 * step);
      steps[step].upper = _mm512_test_epi32_mask(steps[step].places, _mm512_set1_epi32(kUpperHalf));
      const __m512i top = _mm512_slli_epi32(values, 24 - 8 * step);
      steps[step].weights = _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
    }
  } else {
#pragma GCC unroll 2
    for (int step = 0; step < steps_of(Type); ++step) {
      const auto* const own = reinterpret_cast<const __m128i*>(stop + step * kWindowRows);
      const __m128i bytes = _mm_loadu_si128(own);
      constexpr auto kSize = static_cast<std::int64_t>(bytes_of(Type));
      const std::byte* const values = stop + stop_weights(Type) + step * kWindowRows * kSize;
      steps[step] = {_mm512_cvtepu8_epi32(bytes), _mm_movepi8_mask(bytes),
                     reinterpret_cast<__m512>(converted<Type>(values))};
    }
  }
}

// What becomes of the sums of up to sixteen rows of weights with a row of x.
[[gnu::always_inline]] inline void finish_lanes(const PackedRowsArgs& args, std::int64_t row, std::int64_t rows,
                                                int x_row, __m512 sums) {
  const auto there = static_cast<__mmask16>((1U << rows) - 1U);
  const __m512 bias = _mm512_maskz_loadu_ps(there, args.bias + row);
  const __m512 one = _mm512_set1_ps(1.0F);
  const __m512 scales = args.scales == nullptr ? one : _mm512_maskz_loadu_ps(there, args.scales + row);
  const __m512 results = _mm512_fmadd_ps(scales, sums, bias);
  float* const out = args.out + row * args.row_stride + x_row * args.x_stride;
  if (args.row_stride == 1) {
    _mm512_mask_storeu_ps(out, there, results);
    return;
  }
  alignas(64) float apart[kWindowRows];
  _mm512_store_ps(apart, results);
  for (std::int64_t lane = 0; lane < rows; ++lane) out[lane * args.row_stride] = apart[lane];
}

// The columns at which the windows of stops begin, each known a stop before it is used: loads whose address waits for
// another load hold back those behind them (docs/cpu-kernel-notes.md).
class WindowBases {
 public:
  [[gnu::always_inline]] WindowBases(const ColumnWindows& windows, std::size_t first)
      : moves_(windows.moves + first + 1), next_(windows.moves[first] * kMoveColumns) {}

  // Of one stop after the other.
  [[gnu::always_inline]] std::int64_t next() {
    const std::int64_t base = next_;
    next_ += *moves_++ * kMoveColumns;
    __asm__("" : "+r"(next_));  // here, not where it is needed
    return base;
  }

 private:
  const std::uint8_t* moves_;
  std::int64_t next_;
};

// `First` to before `First + Rows` of the rows of x; the last ones of them may not be there.
template <ValueType Type, int Rows>
[[gnu::always_inline]] inline void multiply_block(const PackedRowsArgs& args, std::int64_t block, int first) {
  const std::size_t begin = args.windows.starts[block];
  const std::size_t end = args.windows.starts[block + 1];
  constexpr std::int64_t kBytes = stop_bytes(Type);
  constexpr int kSteps = steps_of(Type);
  constexpr int kSums = 2;
  const std::byte* stop = args.windows.stops + static_cast<std::int64_t>(begin) * kBytes;
  const float* const first_x = args.x + first * args.words * kWordColumns;
  // Each row of x has the same sums in the same order, whatever rows are beside it.
  __m512 sums[Rows][kSums];
  for (auto& own : sums) {
    for (auto& sum : own) sum = _mm512_setzero_ps();
  }
  WindowBases bases(args.windows, begin);
#pragma GCC unroll 1
  for (std::size_t i = begin; i < end; ++i, stop += kBytes) {
    prefetch_stop<Type>(stop, i);
    const float* const x = first_x + bases.next() * Rows;
    WindowStep steps[kSteps];
    load_steps<Type>(stop, steps);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      __m512 columns[4];
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) {
        columns[part] = _mm512_load_ps(x + (part * Rows + r) * kMoveColumns);
        // In a register: compilers load it again for the next step, and loads then take as long as lookups.
        __asm__("" : "+v"(columns[part]));
      }
#pragma GCC unroll 4
      for (int step = 0; step < kSteps; ++step) {
        const WindowStep& own = steps[step];
        const __m512 low = _mm512_permutex2var_ps(columns[0], own.places, columns[1]);
        const __m512 high = _mm512_permutex2var_ps(columns[2], own.places, columns[3]);
        const __m512 operands = _mm512_mask_blend_ps(own.upper, low, high);
        sums[r][step % kSums] = _mm512_fmadd_ps(own.weights, operands, sums[r][step % kSums]);
      }
    }
  }
  const std::int64_t row = block * kWindowRows;
  const std::int64_t rows = std::min(kWindowRows, args.row_end - row);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    if (first + r >= args.x_rows) break;
    finish_lanes(args, row, rows, first + r, _mm512_add_ps(sums[r][0], sums[r][1]));
  }
}

// A block is taken for all rows of x before the next.
template <ValueType Type>
void multiply_windows_of(const PackedRowsArgs& args) {
  for (std::int64_t row = args.row_begin; row < args.row_end; row += kWindowRows) {
    const std::int64_t block = row / kWindowRows;
    for (int first = 0; first < args.x_rows; first += next_group_rows(args.x_rows - first)) {
      switch (next_group_rows(args.x_rows - first)) {
        case 1: multiply_block<Type, 1>(args, block, first); break;
        case 2: multiply_block<Type, 2>(args, block, first); break;
        case 4: multiply_block<Type, 4>(args, block, first); break;
        default: multiply_block<Type, 8>(args, block, first); break;
      }
    }
  }
}

inline void multiply_windows(const PackedRowsArgs& args) {
  switch (args.type) {
    case ValueType::float32: return multiply_windows_of<ValueType::float32>(args);
    case ValueType::bfloat16: return multiply_windows_of<ValueType::bfloat16>(args);
    case ValueType::float16: return multiply_windows_of<ValueType::float16>(args);
    case ValueType::int8: return multiply_windows_of<ValueType::int8>(args);
  }
}

#endif

}  // namespace sift::cpu::SIFT_ISA
