#include "jit/generated_gradient.h"

#include <algorithm>

#include "base/op.h"
#include "jit/x86_emitter.h"

namespace sift::cpu {
namespace {

using HostEmitter = X86Emitter;
static_assert(Emitter<HostEmitter>);
static_assert(HostEmitter::kVectorRegisters == 32);

constexpr std::int32_t kBlockBytes = HostEmitter::kVectorBytes;
// Short instructions reach this far to either side of a pointer, which is moved into the middle.
constexpr std::int32_t kReach = HostEmitter::kNearSteps * kBlockBytes;
constexpr std::size_t kSharedBytes = 4096;
constexpr std::size_t kBlockCodeBytes = 128;  // without products and loads

// What a piece reads.
struct GradientCall {
  const GradientLine* lines;
  std::size_t ends;  // of lines, and 1 for the beginning of the first
  float* sums;       // of the next block
};

Address field(std::size_t offset) { return {Pointer::call, static_cast<std::int32_t>(offset)}; }
Address line_field(std::size_t offset) { return {Pointer::line, static_cast<std::int32_t>(offset)}; }

// Sums over the lanes of up to 16 vectors: lane i of the first one becomes that of vector i. Each step halves their
// number: of a pair, the lanes whose number has the bit `step` go on with the second one.
void fold_lanes(HostEmitter& code, VectorRegister first, int count) {
  constexpr VectorRegister kStraight = kGradientCodeSums;
  constexpr VectorRegister kCrossed = kGradientCodeSums + 2;
  int mask = 4;
  for (int step = kLanes / 2; step >= 1; step /= 2, --mask) {
    for (int i = 0; i < std::min(step, count); ++i) {
      const VectorRegister a = first + i;
      const VectorRegister b = a + step;
      const VectorRegister straight = kStraight + i % 2;
      const VectorRegister crossed = kCrossed + i % 2;
      if (i + step < count) {
        code.blend(straight, mask, a, b);
        code.cross(crossed, mask, a, b, step);
        code.add(a, straight, crossed);
      } else {
        code.cross(crossed, mask, a, a, step);
        code.add(a, a, crossed);
      }
    }
    count = std::min(count, step);
  }
}

}  // namespace

GradientCode::GradientCode(std::size_t products, std::size_t rows, std::size_t blocks)
    : memory_(kSharedBytes + blocks * kBlockCodeBytes + rows * HostEmitter::kLongBytes +
              products * 2 * HostEmitter::kLongBytes),
      at_(memory_.begin()) {
  HostEmitter code(at_);
  enter_ = code.at();
  code.move(Pointer::call, Pointer::argument);
  for (MaskRegister mask = 1; const int lanes : {0xAAAA, 0xCCCC, 0xF0F0, 0xFF00}) {
    code.set_mask(mask++, static_cast<std::uint16_t>(lanes));
  }
  code.leave();

  start_ = code.at();
  for (VectorRegister sum = 0; sum < kGradientCodeSums; ++sum) code.clear(sum);
  code.load(Pointer::line, field(offsetof(GradientCall, lines)));
  code.load(Pointer::lines, field(offsetof(GradientCall, ends)));
  next_line_ = code.at();
  code.count_down(Pointer::lines);
  code.leave_if_zero();
  code.load(Pointer::operands, line_field(offsetof(GradientLine, x)));
  code.load(Pointer::gradients, line_field(offsetof(GradientLine, dy)));
  code.load(Pointer::positions, line_field(offsetof(GradientLine, count)));
  code.advance(Pointer::line, sizeof(GradientLine));
  code.advance(Pointer::operands, kReach);
  code.leave();

  finish_ = code.at();
  fold_lanes(code, 0, kLanes);
  fold_lanes(code, kLanes, kGradientCodeSums - kLanes);
  code.load(Pointer::sums, field(offsetof(GradientCall, sums)));
  for (const VectorRegister half : {0, static_cast<int>(kLanes)}) {
    const Address place{Pointer::sums, half / static_cast<int>(kLanes) * kBlockBytes};
    code.add(half, half, place);
    code.store_aligned(place, half);
  }
  code.advance(Pointer::sums, kGradientCodeFloats * static_cast<std::int32_t>(sizeof(float)));
  code.store(field(offsetof(GradientCall, sums)), Pointer::sums);
  code.leave();
  at_ = code.at();
}

void GradientCode::begin() {
  piece_ = at_;
  HostEmitter code(at_);
  code.call(enter_);
  at_ = code.at();
}

std::span<const std::byte> GradientCode::end() {
  HostEmitter code(at_);
  code.finish();
  at_ = code.at();
  return {piece_, static_cast<const std::byte*>(at_)};
}

void GradientCode::add_block(std::span<const GradientProduct> products, std::span<const std::uint32_t> rows) {
  const auto count = static_cast<int>(products.size());
  const auto gradient_of = [](std::uint32_t row) { return HostEmitter::kVectorRegisters - 1 - static_cast<int>(row); };
  const int operands = HostEmitter::kVectorRegisters - count - static_cast<int>(rows.size());
  HostEmitter code(at_);
  code.call(start_);
  const std::byte* const position = code.at();
  for (std::uint32_t row = 0; row < rows.size(); ++row) {
    code.load(gradient_of(row), {Pointer::gradients, static_cast<std::int32_t>(rows[row])});
  }
  int loaded = 0;
  for (int sum = 0, next = 0; sum < count; sum = next) {
    const std::uint32_t operand = products[static_cast<std::size_t>(sum)].operand;
    while (next < count && products[static_cast<std::size_t>(next)].operand == operand) ++next;
    const Address address{Pointer::operands, static_cast<std::int32_t>(operand) - kReach};
    const VectorRegister shared = count + loaded % operands;
    if (next - sum > 1) code.load(shared, address), ++loaded;
    for (int i = sum; i < next; ++i) {
      const VectorRegister gradient = gradient_of(products[static_cast<std::size_t>(i)].row);
      if (next - sum > 1) {
        code.multiply_add(i, gradient, shared);
      } else {
        code.multiply_add_vector(i, gradient, address);
      }
    }
  }
  code.advance_vector(Pointer::operands);
  code.advance_vector(Pointer::gradients);
  code.count_down(Pointer::positions);
  code.jump_unless_zero(position);
  code.call(next_line_);
  code.jump_unless_zero(position);
  code.call(finish_);
  at_ = code.at();
}

void run_gradient_code(const std::byte* piece, std::span<const GradientLine> lines, float* sums) {
  GradientCall call{lines.data(), lines.size() + 1, sums};
  reinterpret_cast<void (*)(GradientCall*)>(const_cast<std::byte*>(piece))(&call);
}

}  // namespace sift::cpu
