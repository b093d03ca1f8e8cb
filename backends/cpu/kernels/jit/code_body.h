// Bodies: the code of a unit, which multiplies. See generated_rows.h for what stands around them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "simd/kernel_table.h"

namespace sift::cpu {

inline constexpr std::int64_t kCodeRows = 28;  // of 32 registers; the other four hold operands

// What a weight of code is: a float, or four s8 of a quad, which multiply as many u8 of an operand and are added to
// sums of 32-bit integers (see simd/int8/kernel_table.h). A quad takes the place of a channel then; the caller sees to
// it that the machine has the instruction.
//
// A weight is loaded by the instruction that multiplies it. In fours, one load brings the last four of every eight, and
// shuffles take them from a register: where loads take longer than multiplying, and shuffles do not.
enum class CodeWeight : std::uint8_t { single, single_in_fours, quad, quad_in_fours };

constexpr bool is_in_fours(CodeWeight weight) {
  return weight == CodeWeight::single_in_fours || weight == CodeWeight::quad_in_fours;
}

// A non-zero of a group of rows: its column, which is a tap and a channel, and its row in the group.
struct CodeEntry {
  std::uint32_t tap;
  std::uint32_t channel;
  std::uint32_t row;

  bool operator==(const CodeEntry&) const = default;
};

// Channels of a unit, for convolutions of this many taps and this share of non-zeros: enough that what comes once per
// unit and tap weighs little, and that a tap's operands follow one another for a while; and few enough that slices of
// whole units suit any tile.
std::int64_t unit_channels(std::int64_t taps, double density);

// Bytes that a body takes at most, with its prefetching.
std::size_t most_body_bytes(std::size_t nnz, std::size_t columns, CodeWeight weight = CodeWeight::single);

// Writes the body for non-zeros in ascending order of their taps and channels, which is that of their weights, and
// describes it but for the weights; returns its end. `has_taps` is false where the convolution has one tap only.
std::byte* write_body(std::byte* at, std::span<const CodeEntry> entries, bool has_taps, CodeUnit& unit,
                      CodeWeight weight = CodeWeight::single);

// What the body was written from.
std::vector<CodeEntry> read_body(const std::byte* body);

}  // namespace sift::cpu
