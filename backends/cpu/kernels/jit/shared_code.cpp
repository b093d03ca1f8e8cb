#include "jit/shared_code.h"

#include <optional>
#include <utility>
#include <vector>

namespace sift::cpu {
namespace {

using Finish = SharedCode::Finish;

constexpr std::size_t kBytes = 96 << 10;
constexpr VectorRegister kLow = kFirstOperand;
constexpr VectorRegister kHigh = kFirstOperand + 1;

Finish write_finish(HostEmitter& code, auto row_code, auto set_up) {
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
Finish write_finish(HostEmitter& code, auto row_code) {
  return write_finish(code, row_code, [] {});
}

Address of_quads(std::size_t offset) { return field(offsetof(CodeCall, quads) + offset); }

// Floats that the rows of a group are finished with. Rows are finished from the last to the first, four at a time;
// those that are done leave their registers to these. They are read from memory otherwise, which with the operands
// would take most of the time.
class Constants {
 public:
  explicit Constants(std::vector<std::size_t> offsets) : offsets_(std::move(offsets)) {}

  // The rows from `row` on are not done yet; those of the next four are.
  void begin(VectorRegister row) { first_free_ = row + 4; }

  // Calls use(register or address) for the one at an offset in QuadBytes.
  void with(std::size_t offset, auto use) const {
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      if (offsets_[i] == offset && register_of(i) >= first_free_) return use(register_of(i));
    }
    use(of_quads(offset));
  }

  // Loads those whose registers are from `first` to before `end`.
  void load(HostEmitter& code, VectorRegister first, VectorRegister end) const {
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      if (register_of(i) >= first && register_of(i) < end) code.broadcast(register_of(i), of_quads(offsets_[i]));
    }
  }

 private:
  static VectorRegister register_of(std::size_t i) { return kFirstOperand - 1 - static_cast<VectorRegister>(i); }

  std::vector<std::size_t> offsets_;
  VectorRegister first_free_ = kFirstOperand;
};

// A quotient by the divisor; `scratch` is overwritten. A product with the reciprocal, and what it leaves over, which
// corrects it (int8/exact_quotients.h).
void divide(HostEmitter& code, VectorRegister value, VectorRegister scratch, const Constants& constants) {
  constexpr std::size_t kReciprocal = offsetof(QuadBytes, reciprocal);
  constants.with(kReciprocal, [&](auto by) { code.multiply(scratch, value, by); });
  constants.with(offsetof(QuadBytes, minus_divisor), [&](auto by) { code.multiply_add(value, scratch, by); });
  constants.with(kReciprocal, [&](auto by) { code.multiply_then_add(value, scratch, by); });
}

// Calls four(row) for every fourth row, from the last to the first, and writes where a group of some rows is entered.
void write_fours(HostEmitter& code, Finish& finish, Constants& constants, auto four) {
  const std::byte* codes[kCodeRows / 4];
  for (std::int32_t row = kCodeRows - 4; row >= 0; row -= 4) {
    codes[row / 4] = code.at();
    constants.begin(row);
    four(row);
    if (row > 0) constants.load(code, row, row + 4);
  }
  code.finish();
  for (std::int32_t row = kCodeRows - 4; row >= 0; row -= 4) {
    finish.rows[static_cast<std::size_t>(row) + 4] = code.at();
    constants.load(code, row + 4, kFirstOperand);
    code.jump(codes[row / 4]);
  }
}

// Words of four rows as the bytes of a quad, in the first of them; `zero` is added to words of 16 bits. Packing
// saturates, so that nothing has to be compared before.
void pack_quad(HostEmitter& code, VectorRegister row, std::optional<VectorRegister> zero) {
  for (const VectorRegister pair : {row, row + 2}) {
    code.pack_words(pair, pair, pair + 1);
    if (zero) code.add_words(pair, pair, *zero);
  }
  code.pack_bytes(row, row, row + 2);
}

// Floats of four rows, and the bytes of a quad that they become, from the last four to the first. `only_low`: there is
// no upper bound, and the lower one is not below the least value.
Finish write_float_quads(HostEmitter& code, bool adds, bool makes_bytes, bool only_low) {
  constexpr VectorRegister kPlaces = kFirstOperand;
  constexpr VectorRegister kZero = kFirstOperand + 1;
  constexpr VectorRegister kScratch = kFirstOperand + 2;
  constexpr auto kMultipliers = Pointer::operands;
  constexpr auto kFloats = Pointer::step;
  Finish finish{.begin = code.at(), .rows = {}};
  code.load(kMultipliers, field(offsetof(CodeCall, multipliers)));
  code.load(kFloats, field(offsetof(CodeCall, floats_place)));
  if (adds) code.load(Pointer::residual, field(offsetof(CodeCall, residual)));
  if (makes_bytes) {
    code.load(Pointer::place, field(offsetof(CodeCall, finish_place)));
    code.load(kPlaces, of_quads(offsetof(QuadBytes, places)));
    code.broadcast(kZero, of_quads(offsetof(QuadBytes, zero_words)));
  }
  code.jump(field(offsetof(CodeCall, finish_rows)));
  std::vector<std::size_t> held;
  if (makes_bytes) {
    held = {offsetof(QuadBytes, reciprocal), offsetof(QuadBytes, minus_divisor), offsetof(QuadBytes, most_value),
            offsetof(QuadBytes, least_value)};
  }
  Constants constants(held);
  write_fours(code, finish, constants, [&](VectorRegister row) {
    for (VectorRegister sums = row; sums < row + 4; ++sums) {
      code.to_floats(sums, sums);
      code.multiply(sums, sums, {kMultipliers, sums * kWeightBytes});
      if (adds) code.add(sums, sums, {Pointer::residual, sums * kBlockBytes});
      code.max(sums, sums, field(offsetof(CodeCall, low)));
      if (!only_low) code.min(sums, sums, field(offsetof(CodeCall, high)));
      code.store_aligned({kFloats, sums * kBlockBytes}, sums);
      if (!makes_bytes) continue;
      if (!only_low) {
        constants.with(offsetof(QuadBytes, least_value), [&](auto least) { code.max(sums, sums, least); });
      }
      constants.with(offsetof(QuadBytes, most_value), [&](auto most) { code.min(sums, sums, most); });
      divide(code, sums, kScratch, constants);
      code.to_ints(sums, sums);
    }
    if (!makes_bytes) return;
    pack_quad(code, row, kZero);
    code.shuffle_bytes(row, row, kPlaces);
    code.store_aligned({Pointer::place, row / 4 * kBlockBytes}, row);
  });
  return finish;
}

// The same number to all lanes.
void add_number(HostEmitter& code, VectorRegister to, VectorRegister number) { code.add(to, to, number); }
void add_number(HostEmitter& code, VectorRegister to, Address number) { code.add_float(to, to, number); }

// Four rows become the bytes of a quad, from the last four to the first.
Finish write_quads(HostEmitter& code, QuadsAdded added, bool divides, bool all_bytes) {
  const bool adds = added != QuadsAdded::nothing;
  const bool adds_bytes = added == QuadsAdded::bytes;
  constexpr VectorRegister kPlaces = kFirstOperand;
  constexpr VectorRegister kZero = kFirstOperand + 1;  // or what is added before
  constexpr VectorRegister kOther = kFirstOperand + 2;
  constexpr VectorRegister kAdded = kFirstOperand + 3;
  constexpr auto kMultipliers = Pointer::operands;
  Finish finish{.begin = code.at(), .rows = {}};
  code.load(Pointer::place, field(offsetof(CodeCall, finish_place)));
  code.load(kMultipliers, field(offsetof(CodeCall, multipliers)));
  code.load(kPlaces, of_quads(offsetof(QuadBytes, places)));
  if (adds) code.load(Pointer::residual, field(offsetof(CodeCall, residual)));
  code.broadcast(kZero, of_quads(adds ? offsetof(QuadBytes, shift) : offsetof(QuadBytes, zero_words)));
  code.jump(field(offsetof(CodeCall, finish_rows)));
  std::vector<std::size_t> held;
  if (adds) {
    held = {offsetof(QuadBytes, own_low), offsetof(QuadBytes, own_high), offsetof(QuadBytes, rounding),
            offsetof(QuadBytes, own_zero), offsetof(QuadBytes, own_factor)};
  }
  if (adds_bytes) held.insert(held.end(), {offsetof(QuadBytes, other_factor), offsetof(QuadBytes, one_byte)});
  if (divides) held.insert(held.end(), {offsetof(QuadBytes, reciprocal), offsetof(QuadBytes, minus_divisor)});
  Constants constants(held);
  write_fours(code, finish, constants, [&](VectorRegister row) {
    const std::int32_t place = row / 4 * kBlockBytes;
    if (adds_bytes) code.load(kOther, {Pointer::residual, place});
    for (std::int32_t k = 0; k < 4; ++k) {
      const VectorRegister sums = row + k;
      code.to_floats(sums, sums);
      code.multiply(sums, sums, {kMultipliers, sums * kWeightBytes});
      if (divides) divide(code, sums, kAdded, constants);
      if (adds) {
        constants.with(offsetof(QuadBytes, own_low), [&](auto low) { code.max(sums, sums, low); });
        constants.with(offsetof(QuadBytes, own_high), [&](auto high) { code.min(sums, sums, high); });
        for (const std::size_t offset : {offsetof(QuadBytes, rounding), offsetof(QuadBytes, own_zero)}) {
          constants.with(offset, [&](auto number) { add_number(code, sums, number); });
        }
        if (adds_bytes) {
          const VectorRegister bytes = k == 0 ? kOther : kAdded;
          if (k > 0) code.shift_right(kAdded, kOther, 8 * k);
          if (k < 3) {
            constants.with(offsetof(QuadBytes, one_byte), [&](auto mask) { code.mask_ints(kAdded, bytes, mask); });
          }
          code.to_floats(kAdded, kAdded);
          constants.with(offsetof(QuadBytes, other_factor),
                         [&](auto factor) { code.multiply_then_add(kAdded, kZero, factor); });
        } else {
          code.broadcast(kAdded, {Pointer::residual, sums * kWeightBytes});
        }
        constants.with(offsetof(QuadBytes, own_factor),
                       [&](auto factor) { code.multiply_then_add(sums, kAdded, factor); });
      }
      code.to_ints(sums, sums);
    }
    pack_quad(code, row, adds || all_bytes ? std::nullopt : std::optional(kZero));
    if (!all_bytes) {
      code.max_bytes(row, row, of_quads(offsetof(QuadBytes, low)));
      code.min_bytes(row, row, of_quads(offsetof(QuadBytes, high)));
    }
    code.shuffle_bytes(row, row, kPlaces);
    code.store_aligned({Pointer::place, place}, row);
  });
  return finish;
}

}  // namespace

SharedCode::SharedCode() : memory_(kBytes) {
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
  for (const QuadsAdded added : {QuadsAdded::nothing, QuadsAdded::bytes, QuadsAdded::numbers}) {
    for (const bool divides : {false, true}) {
      for (const bool all_bytes : {false, true}) {
        to_quads_[static_cast<std::size_t>(added)][divides][all_bytes] = write_quads(code, added, divides, all_bytes);
      }
    }
  }
  for (const bool adds : {false, true}) {
    for (const bool makes_bytes : {false, true}) {
      for (const bool only_low : {false, true}) {
        to_float_quads_[adds][makes_bytes][only_low] = write_float_quads(code, adds, makes_bytes, only_low);
      }
    }
  }
  memory_.seal(static_cast<std::size_t>(code.at() - memory_.begin()));
}

const SharedCode& shared_code() {
  // Never unmapped: a thread may be running it while the process exits.
  static const SharedCode* const code = new SharedCode;
  return *code;
}

}  // namespace sift::cpu
