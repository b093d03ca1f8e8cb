// Sums of a weight gradient as machine code: which operands and gradients a sum multiplies is in the instructions.
//
// A block's sums are in registers, as are the gradients of its rows at the position at hand. An operand that several
// rows multiply is loaded once for all of them, so that there are fewer loads than products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "jit/code_memory.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

inline constexpr int kGradientCodeSums = 28;  // of 32 registers
// Sums of a row in a block: more rows have more operands in common.
inline constexpr int kGradientCodeSlots = 8;
// Floats that the sums of a block take, the last ones of which mean nothing.
inline constexpr int kGradientCodeFloats = 32;

// Whether the registers hold this many sums, the gradients of their rows, and an operand.
constexpr bool fits_gradient_code(std::int64_t sums, std::int64_t rows) {
  return sums <= kGradientCodeSums && sums + rows < 32;
}

// A sum of a block.
struct GradientProduct {
  std::uint32_t operand;  // bytes from GradientLine::x
  std::uint32_t row;      // of the block
};

// Writes pieces of code, each of which is some blocks.
class GradientCode {
 public:
  // With room for this many products, pieces of rows, and blocks. Throws CodeMemoryError.
  GradientCode(std::size_t products, std::size_t rows, std::size_t blocks);

  void begin();
  // Products in ascending order of their operands, which is that of the sums; `rows` are in bytes from
  // GradientLine::dy to the gradients of each.
  void add_block(std::span<const GradientProduct> products, std::span<const std::uint32_t> rows);
  // The piece since `begin`, which is run as `run_gradient_code`.
  std::span<const std::byte> end();

  // Makes all pieces ready to run, and writes no more. Throws CodeMemoryError.
  void seal() { memory_.seal(static_cast<std::size_t>(at_ - memory_.begin())); }

 private:
  CodeMemory memory_;
  std::byte* at_;
  const std::byte* piece_ = nullptr;
  const std::byte* enter_;
  const std::byte* start_;
  const std::byte* next_line_;
  const std::byte* finish_;
};

// Adds the sums of a piece's blocks, kGradientCodeFloats each, aligned to 64 bytes.
void run_gradient_code(const std::byte* piece, std::span<const GradientLine> lines, float* sums);

}  // namespace sift::cpu
