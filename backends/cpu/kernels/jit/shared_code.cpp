#include "jit/shared_code.h"

#include <optional>

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

// A quotient by the divisor; `scratch` is overwritten. A product with the reciprocal, and what it leaves over, which
// corrects it (int8/exact_quotients.h).
void divide(HostEmitter& code, VectorRegister value, VectorRegister scratch) {
  code.multiply(scratch, value, of_quads(offsetof(QuadBytes, reciprocal)));
  code.multiply_add(value, scratch, of_quads(offsetof(QuadBytes, minus_divisor)));
  code.multiply_then_add(value, scratch, of_quads(offsetof(QuadBytes, reciprocal)));
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
  for (std::int32_t row = kCodeRows - 4; row >= 0; row -= 4) {
    finish.rows[static_cast<std::size_t>(row) + 4] = code.at();
    for (VectorRegister sums = row; sums < row + 4; ++sums) {
      code.to_floats(sums, sums);
      code.multiply(sums, sums, {kMultipliers, sums * kWeightBytes});
      if (adds) code.add(sums, sums, {Pointer::residual, sums * kBlockBytes});
      code.max(sums, sums, field(offsetof(CodeCall, low)));
      if (!only_low) code.min(sums, sums, field(offsetof(CodeCall, high)));
      code.store_aligned({kFloats, sums * kBlockBytes}, sums);
      if (!makes_bytes) continue;
      if (!only_low) code.max(sums, sums, of_quads(offsetof(QuadBytes, least_value)));
      code.min(sums, sums, of_quads(offsetof(QuadBytes, most_value)));
      divide(code, sums, kScratch);
      code.to_ints(sums, sums);
    }
    if (!makes_bytes) continue;
    pack_quad(code, row, kZero);
    code.shuffle_bytes(row, row, kPlaces);
    code.store_aligned({Pointer::place, row / 4 * kBlockBytes}, row);
  }
  code.finish();
  return finish;
}

// Four rows become the bytes of a quad, from the last four to the first.
Finish write_quads(HostEmitter& code, QuadsAdded added, bool divides) {
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
  for (std::int32_t row = kCodeRows - 4; row >= 0; row -= 4) {
    finish.rows[static_cast<std::size_t>(row) + 4] = code.at();
    const std::int32_t place = row / 4 * kBlockBytes;
    if (adds_bytes) code.load(kOther, {Pointer::residual, place});
    for (std::int32_t k = 0; k < 4; ++k) {
      const VectorRegister sums = row + k;
      code.to_floats(sums, sums);
      code.multiply(sums, sums, {kMultipliers, sums * kWeightBytes});
      if (divides) divide(code, sums, kAdded);
      if (adds) {
        code.max(sums, sums, of_quads(offsetof(QuadBytes, own_low)));
        code.min(sums, sums, of_quads(offsetof(QuadBytes, own_high)));
        code.add_float(sums, sums, of_quads(offsetof(QuadBytes, rounding)));
        code.add_float(sums, sums, of_quads(offsetof(QuadBytes, own_zero)));
        if (adds_bytes) {
          const VectorRegister bytes = k == 0 ? kOther : kAdded;
          if (k > 0) code.shift_right(kAdded, kOther, 8 * k);
          if (k < 3) code.mask_ints(kAdded, bytes, of_quads(offsetof(QuadBytes, one_byte)));
          code.to_floats(kAdded, kAdded);
          code.multiply_then_add(kAdded, kZero, of_quads(offsetof(QuadBytes, other_factor)));
        } else {
          code.broadcast(kAdded, {Pointer::residual, sums * kWeightBytes});
        }
        code.multiply_then_add(sums, kAdded, of_quads(offsetof(QuadBytes, own_factor)));
      }
      code.to_ints(sums, sums);
    }
    pack_quad(code, row, adds ? std::nullopt : std::optional(kZero));
    code.max_bytes(row, row, of_quads(offsetof(QuadBytes, low)));
    code.min_bytes(row, row, of_quads(offsetof(QuadBytes, high)));
    code.shuffle_bytes(row, row, kPlaces);
    code.store_aligned({Pointer::place, place}, row);
  }
  code.finish();
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
      to_quads_[static_cast<std::size_t>(added)][divides] = write_quads(code, added, divides);
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
