#include "jit/generated_rows.h"

#include <algorithm>
#include <array>

#include "base/op.h"
#include "base/prefetcher.h"
#include "jit/code_memory.h"
#include "jit/x86_emitter.h"

namespace sift::cpu {
namespace {

// The instruction set that code is generated for.
using HostEmitter = X86Emitter;
static_assert(Emitter<HostEmitter>);

constexpr std::int32_t kBlockBytes = HostEmitter::kVectorBytes;
constexpr std::int32_t kWeightBytes = sizeof(float);
// Short instructions reach this far to either side: pointers point into the middle of what is near.
constexpr std::int32_t kOperandReach = HostEmitter::kNearSteps * kBlockBytes;
constexpr std::int32_t kWeightReach = HostEmitter::kNearSteps * kWeightBytes;
static_assert(kBlockBytes == kLanes * kWeightBytes);

constexpr VectorRegister kFirstOperand = kCodeRows;
constexpr int kOperandRegisters = 4;
static_assert(kCodeRows + kOperandRegisters <= HostEmitter::kVectorRegisters);
static_assert(kPrefetchBytes == HostEmitter::kShortBytes);
constexpr VectorRegister kLow = kFirstOperand;
constexpr VectorRegister kHigh = kFirstOperand + 1;

// What a body and the pieces around it read.
struct CodeCall {
  const std::byte* operands;  // of the block, kOperandReach beyond the first
  const std::byte* weights;   // kWeightReach beyond the first
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
};

Address field(std::size_t offset) { return {Pointer::call, static_cast<std::int32_t>(offset)}; }

// The pieces that all bodies share, for each number of rows.
class SharedCode {
 public:
  using Enter = void (*)(const CodeCall*);
  using Entries = std::array<const std::byte*, kCodeRows + 1>;

  struct Finish {
    const std::byte* begin;
    Entries rows;
  };

  SharedCode() : memory_(kBytes) {
    HostEmitter code(memory_.begin());
    enter_ = reinterpret_cast<Enter>(code.at());
    code.move(Pointer::call, Pointer::argument);
    code.load(Pointer::place, field(offsetof(CodeCall, start_place)));
    code.load(Pointer::step, field(offsetof(CodeCall, start_step)));
    code.load(Pointer::operands, field(offsetof(CodeCall, operands)));
    code.load(Pointer::weights, field(offsetof(CodeCall, weights)));
    code.jump(field(offsetof(CodeCall, start)));
    for (const bool from_bias : {false, true}) {
      // Entered at the last row, whose code comes first.
      Entries& entries = from_bias ? from_bias_ : from_sums_;
      for (std::int64_t row = kCodeRows - 1; row >= 0; --row) {
        entries[static_cast<std::size_t>(row) + 1] = code.at();
        if (from_bias) {
          code.broadcast(static_cast<VectorRegister>(row), {Pointer::place, 0});
        } else {
          code.load(static_cast<VectorRegister>(row), {Pointer::place, 0});
        }
        code.subtract(Pointer::place, Pointer::step);
      }
      code.jump(field(offsetof(CodeCall, body)));
    }
    to_sums_ = write_finish(code, [&](VectorRegister sums) { code.store_aligned({Pointer::place, 0}, sums); });
    for (const bool non_temporal : {false, true}) {
      for (const bool adds : {false, true}) {
        to_output_[non_temporal][adds] = write_finish(
            code,
            [&](VectorRegister sums) {
              if (adds) {
                code.add(sums, sums, {Pointer::residual, 0});
                code.subtract(Pointer::residual, Pointer::step);
              }
              // Of a NaN and a bound these take the second, as the other kernels do.
              code.max(sums, kLow, sums);
              code.min(sums, kHigh, sums);
              if (non_temporal) {
                code.store_non_temporal({Pointer::place, 0}, sums);
              } else {
                code.store({Pointer::place, 0}, sums);
              }
            },
            [&] {
              code.load(Pointer::residual, field(offsetof(CodeCall, residual)));
              code.broadcast(kLow, field(offsetof(CodeCall, low)));
              code.broadcast(kHigh, field(offsetof(CodeCall, high)));
            });
      }
    }
    memory_.seal(static_cast<std::size_t>(code.at() - memory_.begin()));
  }

  Enter enter() const { return enter_; }
  const std::byte* start(bool from_bias, std::int64_t rows) const {
    return (from_bias ? from_bias_ : from_sums_)[static_cast<std::size_t>(rows)];
  }
  const Finish& to_sums() const { return to_sums_; }
  const Finish& to_output(bool non_temporal, bool adds) const { return to_output_[non_temporal][adds]; }

 private:
  static constexpr std::size_t kBytes = 32 << 10;

  static Finish write_finish(HostEmitter& code, auto row_code, auto set_up) {
    Finish finish{.begin = code.at(), .rows = {}};
    code.load(Pointer::place, field(offsetof(CodeCall, finish_place)));
    code.load(Pointer::step, field(offsetof(CodeCall, finish_step)));
    set_up();
    code.jump(field(offsetof(CodeCall, finish_rows)));
    for (std::int64_t row = kCodeRows - 1; row >= 0; --row) {
      finish.rows[static_cast<std::size_t>(row) + 1] = code.at();
      row_code(static_cast<VectorRegister>(row));
      code.subtract(Pointer::place, Pointer::step);
    }
    code.finish();
    return finish;
  }
  static Finish write_finish(HostEmitter& code, auto row_code) {
    return write_finish(code, row_code, [] {});
  }

  CodeMemory memory_;
  Enter enter_ = nullptr;
  Entries from_sums_{};
  Entries from_bias_{};
  Finish to_sums_{};
  Finish to_output_[2][2]{};
};

const SharedCode& shared_code() {
  // Never unmapped: a thread may be running it while the process exits.
  static const SharedCode* const code = new SharedCode;
  return *code;
}

// How far ahead of `now` the pointer has to be moved so that `offset` is near.
std::int32_t step_to(std::int64_t offset, std::int64_t now, std::int32_t reach) {
  return static_cast<std::int32_t>(offset < now + reach ? 0 : offset + reach - now);
}

// Prefetches what rows are stored over, or what is added to them, while the block before is multiplied.
void prefetch_output(const DirectOutput& direct, std::int64_t first, std::int64_t rows, std::ptrdiff_t block) {
  for (std::int64_t row = first; row < first + rows; ++row) {
    const std::ptrdiff_t at = row * direct.row_stride + block;
    if (direct.residual != nullptr) __builtin_prefetch(direct.residual + at, 0);
    if (!direct.non_temporal && direct.out != direct.residual) __builtin_prefetch(direct.out + at, 1);
  }
}

}  // namespace

std::uint32_t body_parts(std::size_t nnz, std::size_t columns) {
  constexpr std::size_t kPartBytes = std::size_t{20} << 10;
  const std::size_t bytes = HostEmitter::kShortBytes * (nnz + std::min(nnz, columns));
  return static_cast<std::uint32_t>(std::max<std::size_t>((bytes + kPartBytes - 1) / kPartBytes, 1));
}

std::size_t most_body_bytes(std::size_t nnz, std::size_t columns) {
  // A pointer is advanced for each column, and for the weights as soon as they are beyond its reach.
  constexpr std::size_t kReach = 2 * HostEmitter::kNearSteps;
  return HostEmitter::kShortBytes * (nnz + nnz / kReach + 1) +
         (HostEmitter::kShortBytes + HostEmitter::kLongBytes) * columns + 32;
}

std::byte* write_body(std::byte* at, std::span<const CodeEntry> entries, std::uint32_t code_ahead,
                      std::uint32_t weights_ahead) {
  HostEmitter code(at);
  code.load(Pointer::code_ahead, field(offsetof(CodeCall, code_ahead)));
  code.load(Pointer::weights_ahead, field(offsetof(CodeCall, weights_ahead)));
  std::uint32_t prefetched = 0;
  std::int64_t operands = kOperandReach;
  std::int64_t weights = kWeightReach;
  std::int64_t weight = 0;
  int loaded = 0;
  VectorRegister operand = kFirstOperand;
  for (std::size_t i = 0; i < entries.size(); ++i, weight += kWeightBytes) {
    const std::int64_t offset = entries[i].offset;
    if (i == 0 || offset != entries[i - 1].offset) {
      if (const std::int32_t step = step_to(offset, operands, kOperandReach); step > 0) {
        code.advance(Pointer::operands, step);
        operands += step;
      }
      operand = kFirstOperand + loaded++ % kOperandRegisters;
      code.load(operand, {Pointer::operands, static_cast<std::int32_t>(offset - operands)});
    }
    if (const std::int32_t step = step_to(weight, weights, kWeightReach); step > 0) {
      code.advance(Pointer::weights, step);
      weights += step;
    }
    code.multiply_add(static_cast<VectorRegister>(entries[i].row), operand,
                      {Pointer::weights, static_cast<std::int32_t>(weight - weights)});
    // Evenly spread: requested all at once, they would fill the queues, and operands would wait.
    for (; prefetched * entries.size() < (i + 1) * (code_ahead + weights_ahead); ++prefetched) {
      const bool is_code = prefetched < code_ahead;
      code.prefetch({is_code ? Pointer::code_ahead : Pointer::weights_ahead,
                     static_cast<std::int32_t>(is_code ? prefetched : prefetched - code_ahead) * kBlockBytes});
    }
  }
  code.jump(field(offsetof(CodeCall, finish)));
  return code.at();
}

std::vector<CodeEntry> read_body(const std::byte* body) {
  std::vector<CodeEntry> entries;
  std::int64_t operands = kOperandReach;
  std::uint32_t offset = 0;
  for (;;) {
    const Instruction read = HostEmitter::decode(body);
    switch (read.kind) {
      case Instruction::Kind::advance:
        if (read.pointer == Pointer::operands) operands += read.displacement;
        break;
      case Instruction::Kind::load: offset = static_cast<std::uint32_t>(operands + read.displacement); break;
      case Instruction::Kind::multiply_add: entries.push_back({offset, static_cast<std::uint32_t>(read.sum)}); break;
      case Instruction::Kind::other: break;
      case Instruction::Kind::end: return entries;
    }
    body += read.bytes;
  }
}

void prepare_generated() { shared_code(); }

void rows_generated(const RowsArgs& args) {
  const SharedCode& shared = shared_code();
  const SharedCode::Enter enter = shared.enter();
  const DirectOutput& direct = args.direct;
  const std::int64_t blocks = std::int64_t{args.tile_rows} * args.tile_columns;
  const auto output_of = [&](std::int64_t block) {
    return block / args.tile_columns * direct.pitch + block % args.tile_columns * direct.step;
  };
  CodeCall call{};
  call.low = direct.low;
  call.high = direct.high;
  for (std::int64_t row = args.row_begin; row < args.row_end; row += args.group_rows) {
    const std::int64_t rows = std::min<std::int64_t>(args.row_end - row, args.group_rows);
    const std::int64_t first = row - args.row_begin;
    // The last row, at which the shared pieces begin.
    float* const group_sums = args.acc + first * blocks * kLanes + (rows - 1) * kLanes;
    const std::ptrdiff_t last_output = (first + rows - 1) * direct.row_stride;
    const CodePart* const parts = args.code + row / args.group_rows * args.parts;
    for (std::uint32_t part = 0; part < args.parts; ++part) {
      const bool from_bias = args.bias != nullptr && part == 0;
      const bool is_direct = direct.out != nullptr && part + 1 == args.parts;
      const SharedCode::Finish& finish =
          is_direct ? shared.to_output(direct.non_temporal, direct.residual != nullptr) : shared.to_sums();
      call.weights = reinterpret_cast<const std::byte*>(parts[part].weights) + kWeightReach;
      call.body = parts[part].body;
      call.start = shared.start(from_bias, rows);
      call.start_step = (from_bias ? 1 : kLanes) * kWeightBytes;
      call.finish = finish.begin;
      call.finish_rows = finish.rows[static_cast<std::size_t>(rows)];
      call.finish_step = (is_direct ? direct.row_stride : kLanes) * kWeightBytes;
      call.code_ahead = parts[part + 1].body;
      call.weights_ahead = reinterpret_cast<const std::byte*>(parts[part + 1].weights);
      if (is_direct) prefetch_output(direct, first, rows, output_of(0));
      for (std::int64_t block = 0; block < blocks; ++block) {
        float* const sums = group_sums + block * args.group_rows * kLanes;
        call.operands = args.panel + block / args.tile_columns * args.pitch +
                        block % args.tile_columns * args.block_bytes + kOperandReach;
        call.start_place = from_bias ? args.bias + row + rows - 1 : sums;
        call.finish_place = sums;
        if (is_direct) {
          const std::ptrdiff_t at = last_output + output_of(block);
          call.finish_place = direct.out + at;
          if (direct.residual != nullptr) call.residual = direct.residual + at;
          if (block + 1 < blocks) prefetch_output(direct, first, rows, output_of(block + 1));
        }
        args.ahead->step(args.ahead_lines);
        enter(&call);
        call.code_ahead += parts[part].code_ahead * kBlockBytes;
        call.weights_ahead += parts[part].weights_ahead * kBlockBytes;
      }
    }
  }
}

}  // namespace sift::cpu
