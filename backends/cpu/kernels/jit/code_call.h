// What bodies and the pieces around them have in common: registers, and the call that they read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/op.h"
#include "jit/code_body.h"
#include "jit/x86_emitter.h"

namespace sift::cpu {

// The instruction set that code is generated for.
using HostEmitter = X86Emitter;
static_assert(Emitter<HostEmitter>);

inline constexpr std::int32_t kBlockBytes = HostEmitter::kVectorBytes;
inline constexpr std::int32_t kWeightBytes = sizeof(float);
static_assert(kBlockBytes == kLanes * kWeightBytes);
// Short instructions reach this far to either side: pointers point into the middle of what is near.
inline constexpr std::int32_t kWeightReach = HostEmitter::kNearSteps * kWeightBytes;
inline constexpr std::int32_t kLineBytes = 64;

inline constexpr VectorRegister kFirstOperand = kCodeRows;
inline constexpr int kOperandRegisters = 4;
static_assert(kCodeRows + kOperandRegisters <= HostEmitter::kVectorRegisters);

// Adding this to a float of up to 22 bits, and taking it off again, rounds as an instruction does: half to even.
inline constexpr float kRounding = 0x1.8p23F;

// A magnitude beyond all bytes' that words of 16 bits hold.
inline constexpr float kMostQuotient = 1024;

// What making bytes of sums takes, as the pieces read it.
struct QuadBytes {
  QuadBytes() = default;
  explicit QuadBytes(const QuadOutput& output)
      : own_low(static_cast<float>(-output.zero_point)),
        own_high(static_cast<float>(255 - output.zero_point)),
        own_zero(static_cast<float>(output.zero_point) - kRounding),
        own_factor(output.own_factor),
        other_factor(output.other_factor),
        shift(output.shift),
        reciprocal(1 / output.divisor),
        minus_divisor(-output.divisor),
        least_value(-kMostQuotient * output.divisor),
        most_value(kMostQuotient * output.divisor),
        zero_words(output.zero_point * 0x00010001) {
    for (int i = 0; i < kBlockBytes; ++i) places[i] = static_cast<std::uint8_t>(i % 4 * 4 + i / 4 % 4);
    std::memset(low, output.low, sizeof(low));
    std::memset(high, output.high, sizeof(high));
  }

  // Of bytes of four rows, each of four positions, those of each position.
  alignas(kLineBytes) std::uint8_t places[kBlockBytes] = {};
  std::uint8_t low[kBlockBytes] = {};
  std::uint8_t high[kBlockBytes] = {};
  float own_low = 0;  // of a rounded product that something is added to, before its zero point is
  float own_high = 0;
  float rounding = kRounding;
  float own_zero = 0;
  float own_factor = 0;
  float other_factor = 0;
  float shift = 0;
  float reciprocal = 0;  // of the divisor
  float minus_divisor = 0;
  float least_value = 0;  // of floats of any magnitude, before they are divided
  float most_value = 0;
  std::int32_t zero_words = 0;
  std::int32_t one_byte = 0xff;
};

// What a body and the pieces around it read.
struct CodeCall {
  std::uintptr_t block;  // the operand of the first of all channels, which may lie before the panel
  const std::ptrdiff_t* taps;
  std::uint64_t units;
  const std::byte* weights;  // kWeightReach beyond the first
  const std::byte* start;
  const std::byte* body;
  const std::byte* finish;
  const std::byte* finish_rows;
  const void* start_place;  // the last row's sums, or its bias
  std::ptrdiff_t start_step;
  const void* finish_place;  // the last row's sums, or its output
  std::ptrdiff_t finish_step;
  const void* residual;  // as its output; of quads, that of the first row
  const std::byte* code_ahead;
  const std::byte* weights_ahead;
  float low;
  float high;
  const float* multipliers;  // those of the group
  const void* floats_place;  // the first row's floats, if such are stored
  QuadBytes quads;
};

inline Address field(std::size_t offset) { return {Pointer::call, static_cast<std::int32_t>(offset)}; }

}  // namespace sift::cpu
