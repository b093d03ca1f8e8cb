#include "jit/generated_rows.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/op.h"
#include "base/prefetcher.h"
#include "jit/assembler.h"
#include "jit/code_memory.h"

namespace sift::cpu {
namespace {

constexpr std::int32_t kBlockBytes = Assembler::kBlock;
constexpr std::int32_t kWeightBytes = sizeof(float);
// Displacements of one byte reach so far to either side: pointers point into the middle of what is near.
constexpr std::int32_t kOperandReach = 128 * kBlockBytes;
constexpr std::int32_t kWeightReach = 128 * kWeightBytes;

// While a body runs.
constexpr Gpr kCall = Gpr::rcx;  // the CodeCall
constexpr Gpr kOperands = Gpr::rdi;
constexpr Gpr kWeights = Gpr::rsi;
constexpr Gpr kCodeAhead = Gpr::rax;  // what is prefetched
constexpr Gpr kWeightsAhead = Gpr::rdx;
// Before it and after it.
constexpr Gpr kPlace = Gpr::rdx;  // of a row's sums, biases or outputs, from the last row to the first
constexpr Gpr kStep = Gpr::rax;   // bytes from one row to the next
constexpr Gpr kResidual = Gpr::rsi;
constexpr Zmm kFirstOperand = kCodeRows;
constexpr int kOperandRegisters = 4;
constexpr Zmm kLow = kFirstOperand;
constexpr Zmm kHigh = kFirstOperand + 1;

// What a body and the pieces around it read.
struct CodeCall {
  const std::byte* operands;  // of the block, kOperandReach beyond the first
  const std::byte* weights;   // kWeightReach beyond the first
  const std::byte* start;
  const std::byte* body;
  const std::byte* finish;
  const std::byte* finish_rows;
  const void* start_place;    // the last row's sums, or its bias
  std::ptrdiff_t start_step;
  const void* finish_place;   // the last row's sums, or its output
  std::ptrdiff_t finish_step;
  const void* residual;       // as its output
  const std::byte* code_ahead;
  const std::byte* weights_ahead;
  float low;
  float high;
};

Memory field(std::size_t offset) { return {kCall, static_cast<std::int32_t>(offset)}; }

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
    Assembler code(memory_.begin());
    // As the System V ABI has it, the argument is in rdi.
    enter_ = reinterpret_cast<Enter>(code.at());
    code.move(kCall, Gpr::rdi);
    code.load(kPlace, field(offsetof(CodeCall, start_place)));
    code.load(kStep, field(offsetof(CodeCall, start_step)));
    code.load(kOperands, field(offsetof(CodeCall, operands)));
    code.load(kWeights, field(offsetof(CodeCall, weights)));
    code.jump(field(offsetof(CodeCall, start)));
    for (const bool from_bias : {false, true}) {
      // Entered at the last row, whose code comes first.
      Entries& entries = from_bias ? from_bias_ : from_sums_;
      for (std::int64_t row = kCodeRows - 1; row >= 0; --row) {
        entries[static_cast<std::size_t>(row) + 1] = code.at();
        if (from_bias) {
          code.broadcast(static_cast<Zmm>(row), {kPlace, 0});
        } else {
          code.load_aligned(static_cast<Zmm>(row), {kPlace, 0});
        }
        code.subtract(kPlace, kStep);
      }
      code.jump(field(offsetof(CodeCall, body)));
    }
    to_sums_ = write_finish(code, [&](Zmm sums) { code.store_aligned({kPlace, 0}, sums); });
    for (const bool streams : {false, true}) {
      for (const bool adds : {false, true}) {
        to_output_[streams][adds] = write_finish(
            code,
            [&](Zmm sums) {
              if (adds) {
                code.add(sums, sums, {kResidual, 0});
                code.subtract(kResidual, kStep);
              }
              // Of a NaN and a bound these take the second, as the other kernels do.
              code.max(sums, kLow, sums);
              code.min(sums, kHigh, sums);
              if (streams) {
                code.stream({kPlace, 0}, sums);
              } else {
                code.store({kPlace, 0}, sums);
              }
            },
            [&] {
              code.load(kResidual, field(offsetof(CodeCall, residual)));
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
  const Finish& to_output(bool streams, bool adds) const { return to_output_[streams][adds]; }

 private:
  static constexpr std::size_t kBytes = 32 << 10;

  static Finish write_finish(Assembler& code, auto row_code, auto set_up) {
    Finish finish{.begin = code.at(), .rows = {}};
    code.load(kPlace, field(offsetof(CodeCall, finish_place)));
    code.load(kStep, field(offsetof(CodeCall, finish_step)));
    set_up();
    code.jump(field(offsetof(CodeCall, finish_rows)));
    for (std::int64_t row = kCodeRows - 1; row >= 0; --row) {
      finish.rows[static_cast<std::size_t>(row) + 1] = code.at();
      row_code(static_cast<Zmm>(row));
      code.subtract(kPlace, kStep);
    }
    code.clear_upper();
    code.ret();
    return finish;
  }
  static Finish write_finish(Assembler& code, auto row_code) {
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

// What rows are stored over, or what is added to them, is asked for while the block before is multiplied.
void ask_for_output(const DirectOutput& direct, std::int64_t first, std::int64_t rows, std::ptrdiff_t block) {
  for (std::int64_t row = first; row < first + rows; ++row) {
    const std::ptrdiff_t at = row * direct.row_stride + block;
    if (direct.residual != nullptr) __builtin_prefetch(direct.residual + at, 0);
    if (!direct.streams && direct.out != direct.residual) __builtin_prefetch(direct.out + at, 1);
  }
}

}  // namespace

std::uint32_t body_parts(std::size_t nnz, std::size_t columns) {
  constexpr std::size_t kPartBytes = std::size_t{20} << 10;
  const std::size_t bytes = 7 * (nnz + std::min(nnz, columns));
  return static_cast<std::uint32_t>(std::max<std::size_t>((bytes + kPartBytes - 1) / kPartBytes, 1));
}

std::size_t most_body_bytes(std::size_t nnz, std::size_t columns) {
  // An addition takes 7 bytes, an instruction with a near displacement as well, one with another 10.
  return 7 * (nnz + nnz / 256 + 1) + 17 * columns + 32;
}

std::byte* write_body(std::byte* at, std::span<const CodeEntry> entries, std::uint32_t code_ahead,
                      std::uint32_t weights_ahead) {
  Assembler code(at);
  code.load(kCodeAhead, field(offsetof(CodeCall, code_ahead)));
  code.load(kWeightsAhead, field(offsetof(CodeCall, weights_ahead)));
  std::uint32_t asked = 0;
  std::int64_t operands = kOperandReach;
  std::int64_t weights = kWeightReach;
  std::int64_t weight = 0;
  int loaded = 0;
  Zmm operand = kFirstOperand;
  for (std::size_t i = 0; i < entries.size(); ++i, weight += kWeightBytes) {
    const std::int64_t offset = entries[i].offset;
    if (i == 0 || offset != entries[i - 1].offset) {
      if (const std::int32_t step = step_to(offset, operands, kOperandReach); step > 0) {
        code.add(kOperands, step);
        operands += step;
      }
      operand = kFirstOperand + loaded++ % kOperandRegisters;
      code.load_aligned(operand, {kOperands, static_cast<std::int32_t>(offset - operands)});
    }
    if (const std::int32_t step = step_to(weight, weights, kWeightReach); step > 0) {
      code.add(kWeights, step);
      weights += step;
    }
    code.multiply_add(static_cast<Zmm>(entries[i].row), operand,
                      {kWeights, static_cast<std::int32_t>(weight - weights)});
    // Evenly spread: asked for all at once, they would fill the queues, and operands would wait.
    for (; asked * entries.size() < (i + 1) * (code_ahead + weights_ahead); ++asked) {
      const bool is_code = asked < code_ahead;
      code.prefetch({is_code ? kCodeAhead : kWeightsAhead,
                     static_cast<std::int32_t>(is_code ? asked : asked - code_ahead) * kBlockBytes});
    }
  }
  code.jump(field(offsetof(CodeCall, finish)));
  return code.at();
}

std::vector<CodeEntry> read_body(const std::byte* body) {
  const auto byte = [&](int i) { return static_cast<int>(body[i]); };
  std::vector<CodeEntry> entries;
  std::int64_t operands = kOperandReach;
  std::uint32_t offset = 0;
  for (;;) {
    if (byte(0) == 0x0F || (byte(0) == 0x48 && byte(1) == 0x8B)) {  // prefetching
      body += 7;
    } else if (byte(0) == 0x48) {  // an addition
      std::int32_t step;
      std::memcpy(&step, body + 3, sizeof(step));
      if ((byte(2) & 7) == static_cast<int>(kOperands)) operands += step;
      body += 7;
    } else if (byte(0) == 0x62 && byte(4) == 0x28) {  // an operand
      offset = static_cast<std::uint32_t>(operands + static_cast<std::int8_t>(byte(6)) * kBlockBytes);
      body += 7;
    } else if (byte(0) == 0x62) {  // a multiply-add, whose sums are the inverted bits of the prefix and ModRM.reg
      const int prefix = ~byte(1);
      const auto row = static_cast<std::uint32_t>((prefix >> 4 & 1) << 4 | (prefix >> 7 & 1) << 3 | (byte(5) >> 3 & 7));
      entries.push_back({offset, row});
      body += 7;
    } else {
      return entries;
    }
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
          is_direct ? shared.to_output(direct.streams, direct.residual != nullptr) : shared.to_sums();
      call.weights = reinterpret_cast<const std::byte*>(parts[part].weights) + kWeightReach;
      call.body = parts[part].body;
      call.start = shared.start(from_bias, rows);
      call.start_step = (from_bias ? 1 : kLanes) * kWeightBytes;
      call.finish = finish.begin;
      call.finish_rows = finish.rows[static_cast<std::size_t>(rows)];
      call.finish_step = (is_direct ? direct.row_stride : kLanes) * kWeightBytes;
      call.code_ahead = parts[part + 1].body;
      call.weights_ahead = reinterpret_cast<const std::byte*>(parts[part + 1].weights);
      if (is_direct) ask_for_output(direct, first, rows, output_of(0));
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
          if (block + 1 < blocks) ask_for_output(direct, first, rows, output_of(block + 1));
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
