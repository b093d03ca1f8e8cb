#include "jit/generated_rows.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/microarchitecture.h"
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
// Blocks in which what comes next is prefetched: with fewer, some of it before; with more, most ask in vain.
constexpr std::int64_t kBlocksAhead = 8;
constexpr std::int32_t kLine = 64;
constexpr VectorRegister kLow = kFirstOperand;
constexpr VectorRegister kHigh = kFirstOperand + 1;

// Adding this to a float of up to 22 bits, and taking it off again, rounds as an instruction does: half to even.
constexpr float kRounding = 0x1.8p23F;

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
        zero_words(output.zero_point * 0x00010001) {
    for (int i = 0; i < kBlockBytes; ++i) places[i] = static_cast<std::uint8_t>(i % 4 * 4 + i / 4 % 4);
    std::memset(low, output.low, sizeof(low));
    std::memset(high, output.high, sizeof(high));
  }

  // Of bytes of four rows, each of four positions, those of each position.
  alignas(kLine) std::uint8_t places[kBlockBytes] = {};
  std::uint8_t low[kBlockBytes] = {};
  std::uint8_t high[kBlockBytes] = {};
  float own_low = 0;  // of a rounded product that something is added to, before its zero point is
  float own_high = 0;
  float rounding = kRounding;
  float own_zero = 0;
  float own_factor = 0;
  float other_factor = 0;
  float shift = 0;
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
  const void* residual;  // as its output
  const std::byte* code_ahead;
  const std::byte* weights_ahead;
  float low;
  float high;
  const float* multipliers;  // those of the group
  QuadBytes quads;
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
    code.load(Pointer::block, field(offsetof(CodeCall, block)));
    code.load(Pointer::taps, field(offsetof(CodeCall, taps)));
    code.load(Pointer::units, field(offsetof(CodeCall, units)));
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
      code.load(Pointer::code_ahead, field(offsetof(CodeCall, code_ahead)));
      code.load(Pointer::weights_ahead, field(offsetof(CodeCall, weights_ahead)));
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
    for (const bool adds : {false, true}) to_quads_[adds] = write_quads(code, adds);
    memory_.seal(static_cast<std::size_t>(code.at() - memory_.begin()));
  }

  Enter enter() const { return enter_; }
  const std::byte* start(bool from_bias, std::int64_t rows) const {
    return (from_bias ? from_bias_ : from_sums_)[static_cast<std::size_t>(rows)];
  }
  const Finish& to_sums() const { return to_sums_; }
  const Finish& to_output(bool non_temporal, bool adds) const { return to_output_[non_temporal][adds]; }
  // For rows that are a multiple of 4.
  const Finish& to_quads(bool adds) const { return to_quads_[adds]; }

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

  // Four rows become the bytes of a quad, from the last four to the first.
  static Finish write_quads(HostEmitter& code, bool adds) {
    constexpr VectorRegister kPlaces = kFirstOperand;
    constexpr VectorRegister kZero = kFirstOperand + 1;  // or what is added before
    constexpr VectorRegister kOther = kFirstOperand + 2;
    constexpr VectorRegister kAdded = kFirstOperand + 3;
    constexpr auto kMultipliers = Pointer::operands;
    const auto of_quads = [](std::size_t offset) { return field(offsetof(CodeCall, quads) + offset); };
    Finish finish{.begin = code.at(), .rows = {}};
    code.load(Pointer::place, field(offsetof(CodeCall, finish_place)));
    code.load(kMultipliers, field(offsetof(CodeCall, multipliers)));
    code.load(kPlaces, of_quads(offsetof(QuadBytes, places)));
    if (adds) code.load(Pointer::residual, field(offsetof(CodeCall, residual)));
    code.broadcast(kZero, of_quads(adds ? offsetof(QuadBytes, shift) : offsetof(QuadBytes, zero_words)));
    code.jump(field(offsetof(CodeCall, finish_rows)));
    for (std::int32_t row = kCodeRows - 4; row >= 0; row -= 4) {
      finish.rows[static_cast<std::size_t>(row) + 4] = code.at();
      const std::int32_t place = row / 4 * kBlockBytes;
      if (adds) code.load(kOther, {Pointer::residual, place});
      for (std::int32_t k = 0; k < 4; ++k) {
        const VectorRegister sums = row + k;
        code.to_floats(sums, sums);
        code.multiply(sums, sums, {kMultipliers, sums * kWeightBytes});
        if (adds) {
          code.max(sums, sums, of_quads(offsetof(QuadBytes, own_low)));
          code.min(sums, sums, of_quads(offsetof(QuadBytes, own_high)));
          code.add_float(sums, sums, of_quads(offsetof(QuadBytes, rounding)));
          code.add_float(sums, sums, of_quads(offsetof(QuadBytes, own_zero)));
          const VectorRegister bytes = k == 0 ? kOther : kAdded;
          if (k > 0) code.shift_right(kAdded, kOther, 8 * k);
          if (k < 3) code.mask_ints(kAdded, bytes, of_quads(offsetof(QuadBytes, one_byte)));
          code.to_floats(kAdded, kAdded);
          code.multiply_then_add(kAdded, kZero, of_quads(offsetof(QuadBytes, other_factor)));
          code.multiply_then_add(sums, kAdded, of_quads(offsetof(QuadBytes, own_factor)));
        }
        code.to_ints(sums, sums);
      }
      // Packing saturates, so that nothing has to be compared before.
      for (const VectorRegister pair : {row, row + 2}) {
        code.pack_words(pair, pair, pair + 1);
        if (!adds) code.add_words(pair, pair, kZero);
      }
      code.pack_bytes(row, row, row + 2);
      code.max_bytes(row, row, of_quads(offsetof(QuadBytes, low)));
      code.min_bytes(row, row, of_quads(offsetof(QuadBytes, high)));
      code.shuffle_bytes(row, row, kPlaces);
      code.store_aligned({Pointer::place, place}, row);
    }
    code.finish();
    return finish;
  }

  CodeMemory memory_;
  Enter enter_ = nullptr;
  Entries from_sums_{};
  Entries from_bias_{};
  Finish to_sums_{};
  Finish to_output_[2][2]{};
  Finish to_quads_[2]{};
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

// What is executed after a part, of which bodies prefetch some lines with every block of the part: where blocks are
// few, the rest is prefetched before.
class PartAhead {
 public:
  PartAhead(const void* first, const void* end, std::int64_t lines_per_block, std::int64_t blocks)
      : first_(reinterpret_cast<std::uintptr_t>(first)),
        lines_(ceil_div(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(end) - first_), kLine)),
        step_(lines_per_block),
        rest_(blocks * lines_per_block),
        rest_step_(ceil_div(std::max<std::int64_t>(lines_ - rest_, 0), blocks)) {}

  // Where bodies begin for the next block; where all has been prefetched, what they ask for is there.
  const std::byte* next() {
    for (const std::int64_t end = std::min(rest_ + rest_step_, lines_); rest_ < end; ++rest_) {
      prefetch_line(first_ + static_cast<std::uintptr_t>(rest_ * kLine));
    }
    const std::int64_t at = at_ < lines_ ? at_ : 0;
    at_ = at + step_;
    return reinterpret_cast<const std::byte*>(first_ + static_cast<std::uintptr_t>(at * kLine));
  }

 private:
  std::uintptr_t first_;
  std::int64_t lines_;
  std::int64_t step_;
  std::int64_t rest_;
  std::int64_t rest_step_;
  std::int64_t at_ = 0;
};

// The units of a slice in one group of rows, cut into parts that stay in the first-level cache while the blocks of a
// tile go through them.
class Parts {
 public:
  Parts(const CodeUnit* first, std::int64_t units)
      : first_(first),
        units_(units),
        count_(std::clamp<std::int64_t>(ceil_div(first[units].body - first->body, part_bytes()), 1, units)) {}

  std::int64_t count() const { return count_; }
  const CodeUnit* at(std::int64_t part) const { return first_ + units_ * part / count_; }

 private:
  // Intel's processors take a part's operands from the second-level cache more slowly than they multiply: a smaller
  // part's stay in the first-level cache, where the next block's taps find most of them again.
  static std::ptrdiff_t part_bytes() {
    return std::ptrdiff_t{detected_microarchitecture() == Microarchitecture::intel ? 14 : 20} << 10;
  }

  const CodeUnit* first_;
  std::int64_t units_;
  std::int64_t count_;
};

}  // namespace

std::int64_t unit_channels(std::int64_t taps, double density) {
  constexpr double kInstructions = 220;  // loads of operands among them; slices are made of whole units
  constexpr std::int64_t kMostChannels = 64;
  const auto columns = static_cast<std::int64_t>(kInstructions / (1.0 + density * static_cast<double>(kCodeRows)));
  return std::clamp<std::int64_t>(columns / taps, 1, kMostChannels);
}

std::size_t most_body_bytes(std::size_t nnz, std::size_t columns) {
  // A pointer is set for each column, by two instructions, and advanced for the weights as soon as they are beyond its
  // reach. A line of code or weights is prefetched by one instruction, or by fewer.
  constexpr std::size_t kReach = 2 * HostEmitter::kNearSteps;
  constexpr std::size_t kEnd = 5;  // instructions
  const std::size_t multiplying =
      HostEmitter::kShortBytes * (nnz + nnz / kReach + 2 * columns) + HostEmitter::kLongBytes * columns;
  const std::size_t lines = (multiplying + nnz * sizeof(float)) / kLine + 2;
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
    constexpr std::size_t kPiece = kLine * kBlocksAhead;
    return static_cast<std::uint32_t>((bytes + kPiece - 1) / kPiece);
  };
  unit.body = at;
  unit.code_ahead = lines_ahead(HostEmitter::kShortBytes * (nnz + columns));
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
      operand = kFirstOperand + loaded++ % kOperandRegisters;
      code.load(operand, {Pointer::operands, static_cast<std::int32_t>(offset - operands)});
    }
    if (const std::int32_t step = step_to(weight, weights, kWeightReach); step > 0) {
      code.advance(Pointer::weights, step);
      weights += step;
    }
    const Address factor{Pointer::weights, static_cast<std::int32_t>(weight - weights)};
    if (kind == CodeWeight::quad) {
      code.dot_product(static_cast<VectorRegister>(entry.row), operand, factor);
    } else {
      code.multiply_add(static_cast<VectorRegister>(entry.row), operand, factor);
    }
    // Evenly spread: requested all at once, they would fill the queues, and operands would wait.
    for (; prefetched * nnz < (i + 1) * (unit.code_ahead + unit.weights_ahead); ++prefetched) {
      const bool is_code = prefetched < unit.code_ahead;
      code.prefetch({is_code ? Pointer::code_ahead : Pointer::weights_ahead,
                     static_cast<std::int32_t>(is_code ? prefetched : prefetched - unit.code_ahead) * kLine});
    }
  }
  // As the next body, which may follow at once, expects the pointers.
  if (nnz > 0) {
    code.advance(Pointer::weights, static_cast<std::int32_t>(weight + kWeightReach - weights));
    code.advance(Pointer::code_ahead, static_cast<std::int32_t>(unit.code_ahead) * kLine);
    code.advance(Pointer::weights_ahead, static_cast<std::int32_t>(unit.weights_ahead) * kLine);
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
  call.taps = args.taps;
  call.low = direct.low;
  call.high = direct.high;
  if (args.quads != nullptr) call.quads = QuadBytes(*args.quads);
  const std::uintptr_t first_block =
      reinterpret_cast<std::uintptr_t>(args.panel) - static_cast<std::uintptr_t>(args.first_channel) * kBlockBytes;
  for (std::int64_t row = args.row_begin; row < args.row_end; row += args.group_rows) {
    const std::int64_t rows = std::min<std::int64_t>(args.row_end - row, args.group_rows);
    const std::int64_t first = row - args.row_begin;
    // The last row, at which the shared pieces begin.
    float* const group_sums = args.acc + first * blocks * kLanes + (rows - 1) * kLanes;
    const std::ptrdiff_t last_output = (first + rows - 1) * direct.row_stride;
    const CodeUnit* const group = args.code + row / args.group_rows * args.units;
    const std::int64_t units = args.end_unit - args.first_unit;
    const Parts parts(group + args.first_unit, units);
    const Parts next_parts(group + args.units + args.first_unit, units);
    for (std::int64_t part = 0; part < parts.count(); ++part) {
      const CodeUnit* const begin = parts.at(part);
      const CodeUnit* const end = parts.at(part + 1);
      const bool is_last = part + 1 == parts.count();
      const bool from_bias = args.bias != nullptr && part == 0;
      const bool is_direct = direct.out != nullptr && is_last;
      const bool to_quads = args.quads != nullptr && is_last && rows % 4 == 0;
      const SharedCode::Finish& finish = is_direct  ? shared.to_output(direct.non_temporal, direct.residual != nullptr)
                                         : to_quads ? shared.to_quads(args.quads->other != nullptr)
                                                    : shared.to_sums();
      if (to_quads) call.multipliers = args.quads->multipliers + row;
      call.weights = reinterpret_cast<const std::byte*>(begin->weights) + kWeightReach;
      call.units = static_cast<std::uint64_t>(end - begin);
      call.body = begin->body;
      call.start = shared.start(from_bias, rows);
      call.start_step = (from_bias ? 1 : kLanes) * kWeightBytes;
      call.finish = finish.begin;
      call.finish_rows = finish.rows[static_cast<std::size_t>(rows)];
      call.finish_step = (is_direct ? direct.row_stride : kLanes) * kWeightBytes;
      std::int64_t code_lines = 0;
      std::int64_t weight_lines = 0;
      for (const CodeUnit& unit : std::span(begin, end)) {
        code_lines += unit.code_ahead;
        weight_lines += unit.weights_ahead;
      }
      const CodeUnit* const next = is_last ? next_parts.at(0) : end;
      const CodeUnit* const next_end = is_last ? next_parts.at(1) : parts.at(part + 2);
      PartAhead code_ahead(next->body, next_end->body, code_lines, blocks);
      PartAhead weights_ahead(next->weights, next_end->weights, weight_lines, blocks);
      const std::int64_t lines_ahead = ceil_div(args.ahead_lines, blocks * parts.count());
      if (is_direct) prefetch_output(direct, first, rows, output_of(0));
      for (std::int64_t block = 0; block < blocks; ++block) {
        float* const sums = group_sums + block * args.group_rows * kLanes;
        call.block = first_block + static_cast<std::uintptr_t>(block / args.tile_columns * args.pitch +
                                                               block % args.tile_columns * args.block_bytes);
        call.start_place = from_bias ? args.bias + row + rows - 1 : sums;
        call.finish_place = sums;
        if (is_direct) {
          const std::ptrdiff_t at = last_output + output_of(block);
          call.finish_place = direct.out + at;
          if (direct.residual != nullptr) call.residual = direct.residual + at;
          if (block + 1 < blocks) prefetch_output(direct, first, rows, output_of(block + 1));
        }
        if (to_quads) {
          const std::ptrdiff_t at = block * args.quads->block_bytes + row / 4 * kBlockBytes;
          call.finish_place = args.quads->out + at;
          if (args.quads->other != nullptr) call.residual = args.quads->other + at;
        }
        call.code_ahead = code_ahead.next();
        call.weights_ahead = weights_ahead.next();
        args.ahead->step(lines_ahead);
        enter(&call);
      }
    }
  }
}

}  // namespace sift::cpu
