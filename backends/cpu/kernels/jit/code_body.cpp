#include "jit/code_body.h"

#include <algorithm>

#include "jit/code_call.h"

namespace sift::cpu {
namespace {

constexpr std::int32_t kOperandReach = HostEmitter::kNearSteps * kBlockBytes;
// Blocks in which what comes next is prefetched: with fewer, some of it before; with more, most ask in vain.
constexpr std::int64_t kBlocksAhead = 8;

// Weights that are loaded at once, and of how many they are the last.
constexpr std::size_t kFour = 4;
constexpr std::size_t kTurn = 8;
constexpr VectorRegister kFourWeights = kFirstOperand + 2;
constexpr VectorRegister kRepeated = kFirstOperand + 3;
// Bytes that are more of a turn, if its last weights are loaded at once.
constexpr std::size_t kTurnBytes = HostEmitter::kShortBytes + kFour * HostEmitter::kRegisterBytes;

// How far ahead of `now` the pointer has to be moved so that `offset` is near. A multiple of 16 bytes, as which four
// weights are addressed, if `now` is one.
std::int32_t step_to(std::int64_t offset, std::int64_t now, std::int32_t reach) {
  constexpr std::int64_t kUnit = 16;
  return static_cast<std::int32_t>(offset < now + reach ? 0 : offset / kUnit * kUnit + reach - now);
}

// Whether the weight is the first of four that are loaded at once, or one of them.
bool begins_four(std::size_t i, std::size_t nnz) { return i % kTurn == kTurn - kFour && i + kFour <= nnz; }
bool is_in_four(std::size_t i, std::size_t nnz) {
  return i % kTurn >= kTurn - kFour && begins_four(i / kTurn * kTurn + kTurn - kFour, nnz);
}

}  // namespace

std::int64_t unit_channels(std::int64_t taps, double density) {
  constexpr double kInstructions = 220;  // loads of operands among them; slices are made of whole units
  constexpr std::int64_t kMostChannels = 64;
  const auto columns = static_cast<std::int64_t>(kInstructions / (1.0 + density * static_cast<double>(kCodeRows)));
  return std::clamp<std::int64_t>(columns / taps, 1, kMostChannels);
}

std::size_t most_body_bytes(std::size_t nnz, std::size_t columns, CodeWeight weight) {
  // A pointer is set for each column, by two instructions, and advanced for the weights as soon as they are beyond its
  // reach. A line of code or weights is prefetched by one instruction, or by fewer.
  constexpr std::size_t kReach = 2 * HostEmitter::kNearSteps;
  constexpr std::size_t kEnd = 5;  // instructions
  const std::size_t multiplying = HostEmitter::kShortBytes * (nnz + nnz / kReach + 2 * columns) +
                                  HostEmitter::kLongBytes * columns +
                                  (is_in_fours(weight) ? nnz / kTurn * kTurnBytes : 0);
  const std::size_t lines = (multiplying + nnz * sizeof(float)) / kLineBytes + 2;
  return multiplying + HostEmitter::kShortBytes * (lines / std::size_t{kBlocksAhead} + 2 + kEnd);
}

std::byte* write_body(std::byte* at, std::span<const CodeEntry> entries, bool has_taps, CodeUnit& unit,
                      CodeWeight kind) {
  const std::size_t nnz = entries.size();
  std::size_t columns = 0;
  const auto is_new_column = [&](std::size_t i) {
    return i == 0 || entries[i].tap != entries[i - 1].tap || entries[i].channel != entries[i - 1].channel;
  };
  for (std::size_t i = 0; i < nnz; ++i) columns += is_new_column(i) ? 1 : 0;
  // What comes next is about as long.
  const auto lines_ahead = [](std::size_t bytes) {
    constexpr std::size_t kPiece = kLineBytes * kBlocksAhead;
    return static_cast<std::uint32_t>((bytes + kPiece - 1) / kPiece);
  };
  unit.body = at;
  const bool in_fours = is_in_fours(kind);
  const bool is_float = kind == CodeWeight::single || kind == CodeWeight::single_in_fours;
  unit.code_ahead = lines_ahead(HostEmitter::kShortBytes * (nnz + columns) + (in_fours ? nnz / kTurn * kTurnBytes : 0));
  unit.weights_ahead = lines_ahead(sizeof(float) * nnz);

  HostEmitter code(at);
  std::uint32_t prefetched = 0;
  std::int64_t operands = 0;
  std::int64_t weights = kWeightReach;
  std::int64_t weight = 0;
  int loaded = 0;
  VectorRegister operand = kFirstOperand;
  for (std::size_t i = 0; i < nnz; ++i, weight += kWeightBytes) {
    const CodeEntry& entry = entries[i];
    const std::int64_t offset = std::int64_t{entry.channel} * kBlockBytes;
    if (i == 0 || entry.tap != entries[i - 1].tap) {
      operands = offset + kOperandReach;
      code.set(Pointer::operands, {Pointer::block, static_cast<std::int32_t>(operands)});
      if (has_taps) {
        const auto place = static_cast<std::int32_t>(entry.tap * sizeof(std::ptrdiff_t));
        code.add(Pointer::operands, {Pointer::taps, place});
      }
    }
    if (is_new_column(i)) {
      if (const std::int32_t step = step_to(offset, operands, kOperandReach); step > 0) {
        code.advance(Pointer::operands, step);
        operands += step;
      }
      operand = kFirstOperand + loaded++ % (in_fours ? 2 : kOperandRegisters);
      code.load(operand, {Pointer::operands, static_cast<std::int32_t>(offset - operands)});
    }
    if (const std::int32_t step = step_to(weight, weights, kWeightReach); step > 0) {
      code.advance(Pointer::weights, step);
      weights += step;
    }
    const Address factor{Pointer::weights, static_cast<std::int32_t>(weight - weights)};
    const auto sum = static_cast<VectorRegister>(entry.row);
    const auto multiply = [&](auto weight) {
      is_float ? code.multiply_add(sum, operand, weight) : code.dot_product(sum, operand, weight);
    };
    if (in_fours && is_in_four(i, nnz)) {
      if (begins_four(i, nnz)) code.load_four(kFourWeights, factor);
      code.repeat(kRepeated, kFourWeights, static_cast<int>(i % kTurn - (kTurn - kFour)));
      multiply(kRepeated);
    } else {
      multiply(factor);
    }
    // Evenly spread: requested all at once, they would fill the queues, and operands would wait.
    for (; prefetched * nnz < (i + 1) * (unit.code_ahead + unit.weights_ahead); ++prefetched) {
      const bool is_code = prefetched < unit.code_ahead;
      code.prefetch({is_code ? Pointer::code_ahead : Pointer::weights_ahead,
                     static_cast<std::int32_t>(is_code ? prefetched : prefetched - unit.code_ahead) * kLineBytes});
    }
  }
  // As the next body, which may follow at once, expects the pointers.
  if (nnz > 0) {
    code.advance(Pointer::weights, static_cast<std::int32_t>(weight + kWeightReach - weights));
    code.advance(Pointer::code_ahead, static_cast<std::int32_t>(unit.code_ahead) * kLineBytes);
    code.advance(Pointer::weights_ahead, static_cast<std::int32_t>(unit.weights_ahead) * kLineBytes);
  }
  code.count_down(Pointer::units);
  code.jump_if_zero(field(offsetof(CodeCall, finish)));
  return code.at();
}

std::vector<CodeEntry> read_body(const std::byte* body) {
  std::vector<CodeEntry> entries;
  std::int64_t operands = 0;
  CodeEntry entry{};
  for (;;) {
    const Instruction read = HostEmitter::decode(body);
    switch (read.kind) {
      case Instruction::Kind::advance:
        if (read.pointer == Pointer::operands) operands += read.displacement;
        break;
      case Instruction::Kind::set_operands: operands = read.displacement; break;
      case Instruction::Kind::add_tap:
        entry.tap = static_cast<std::uint32_t>(read.displacement) / sizeof(std::ptrdiff_t);
        break;
      case Instruction::Kind::load:
        entry.channel = static_cast<std::uint32_t>((operands + read.displacement) / kBlockBytes);
        break;
      case Instruction::Kind::multiply_add:
        entry.row = static_cast<std::uint32_t>(read.sum);
        entries.push_back(entry);
        break;
      case Instruction::Kind::other: break;
      case Instruction::Kind::end: return entries;
    }
    body += read.bytes;
  }
}

}  // namespace sift::cpu
