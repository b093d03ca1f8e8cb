// What bodies and the pieces around them have in common: registers, and the call that they read.
#pragma once

#include <cstddef>
#include <cstdint>

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
  const void* residual;  // as its output
  const std::byte* code_ahead;
  const std::byte* weights_ahead;
  float low;
  float high;
  QuadOutput quads;  // multipliers are those of the group
  std::int32_t low_byte = 0xff;
};

inline Address field(std::size_t offset) { return {Pointer::call, static_cast<std::int32_t>(offset)}; }

}  // namespace sift::cpu
