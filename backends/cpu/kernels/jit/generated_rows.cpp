#include "jit/generated_rows.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/microarchitecture.h"
#include "base/op.h"
#include "base/prefetcher.h"
#include "jit/rows_ahead.h"
#include "jit/shared_code.h"

namespace sift::cpu {
namespace {

// Where the blocks of a tile lie, one after the other. Divisions would take longer than short rows.
class BlockPlaces {
 public:
  // From a block to the next one, and from a row of blocks to the next one.
  BlockPlaces(std::int64_t columns, std::ptrdiff_t step, std::ptrdiff_t pitch)
      : columns_(columns), step_(step), to_next_row_(pitch - (columns - 1) * step) {}

  std::ptrdiff_t at() const { return at_; }
  void next() {
    const bool ends_row = ++column_ == columns_;
    at_ += ends_row ? to_next_row_ : step_;
    if (ends_row) column_ = 0;
  }

 private:
  std::int64_t columns_;
  std::ptrdiff_t step_;
  std::ptrdiff_t to_next_row_;
  std::int64_t column_ = 0;
  std::ptrdiff_t at_ = 0;
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

QuadsAdded added_of(const QuadOutput& quads) {
  if (quads.rests != nullptr) return QuadsAdded::numbers;
  return quads.other != nullptr ? QuadsAdded::bytes : QuadsAdded::nothing;
}

const SharedCode::Finish& finish_of(const SharedCode& shared, const QuadOutput& quads) {
  const FloatOutput& floats = quads.floats;
  if (floats.out != nullptr) {
    const bool only_low =
        floats.high == std::numeric_limits<float>::infinity() && floats.low >= -kMostQuotient * quads.divisor;
    return shared.to_float_quads(floats.residual != nullptr, floats.makes_bytes, only_low);
  }
  const QuadsAdded added = added_of(quads);
  const bool has_zero = added == QuadsAdded::nothing && quads.zero_point != 0;
  return shared.to_quads(added, quads.divisor != 1, quads.low == 0 && quads.high == 0xFF && !has_zero);
}

}  // namespace

void prepare_generated() { shared_code(); }

void rows_generated(const RowsArgs& args) {
  const SharedCode& shared = shared_code();
  const SharedCode::Enter enter = shared.enter();
  const DirectOutput& direct = args.direct;
  const std::int64_t blocks = std::int64_t{args.tile_rows} * args.tile_columns;
  CodeCall call{};
  call.taps = args.taps;
  call.low = direct.low;
  call.high = direct.high;
  const FloatOutput floats = args.quads != nullptr ? args.quads->floats : FloatOutput{};
  std::optional<QuadsAhead> quads_ahead;
  if (args.quads != nullptr) {
    call.quads = QuadBytes(*args.quads);
    quads_ahead.emplace(*args.quads, args.row_begin, args.group_rows, blocks);
  }
  if (floats.out != nullptr) {
    call.low = floats.low;
    call.high = floats.high;
  }
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
                                         : to_quads ? finish_of(shared, *args.quads)
                                                    : shared.to_sums();
      if (to_quads) call.multipliers = args.quads->multipliers + row;
      if (to_quads && args.quads->rests != nullptr) call.residual = args.quads->rests + row;
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
      const auto floats_of = [&](std::int64_t block) {
        return block * args.quads->block_bytes * kWeightBytes + row * kBlockBytes;
      };
      const bool to_floats = to_quads && floats.out != nullptr;
      BlockPlaces operands(args.tile_columns, args.block_bytes, args.pitch);
      BlockPlaces outputs(args.tile_columns, direct.step, direct.pitch);
      if (is_direct) prefetch_output(direct, first, rows, outputs.at());
      const auto quads_of = [&](std::int64_t block) { return block * args.quads->block_bytes + row / 4 * kBlockBytes; };
      const bool adds_bytes = to_quads && args.quads->other != nullptr;
      for (std::int64_t block = 0; block < blocks; ++block) {
        float* const sums = group_sums + block * args.group_rows * kLanes;
        call.block = first_block + static_cast<std::uintptr_t>(operands.at());
        operands.next();
        call.start_place = from_bias ? args.bias + row + rows - 1 : sums;
        call.finish_place = sums;
        if (is_direct) {
          const std::ptrdiff_t at = last_output + outputs.at();
          outputs.next();
          call.finish_place = direct.out + at;
          if (direct.residual != nullptr) call.residual = direct.residual + at;
          if (block + 1 < blocks) prefetch_output(direct, first, rows, outputs.at());
        }
        if (to_quads) {
          call.finish_place = args.quads->out + quads_of(block);
          quads_ahead->step();
        }
        if (adds_bytes) call.residual = args.quads->other + quads_of(block);
        if (to_floats) {
          call.floats_place = floats.out + floats_of(block);
          if (floats.residual != nullptr) call.residual = floats.residual + floats_of(block);
        }
        call.code_ahead = code_ahead.next();
        call.weights_ahead = weights_ahead.next();
        if (args.ahead != nullptr) args.ahead->step(lines_ahead);
        enter(&call);
      }
    }
  }
}

}  // namespace sift::cpu
