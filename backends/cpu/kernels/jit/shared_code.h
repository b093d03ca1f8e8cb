// The pieces of code that all bodies share, for each number of rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "jit/code_call.h"
#include "jit/code_memory.h"

namespace sift::cpu {

// What is added to bytes before they are stored: bytes, or a number of each row.
enum class QuadsAdded : std::uint8_t { nothing, bytes, numbers };

class SharedCode {
 public:
  using Enter = void (*)(const CodeCall*);
  using Entries = std::array<const std::byte*, kCodeRows + 1>;

  struct Finish {
    const std::byte* begin;
    Entries rows;
  };

  // Throws CodeMemoryError.
  SharedCode();

  Enter enter() const { return enter_; }
  const std::byte* start(bool from_bias, std::int64_t rows) const {
    return (from_bias ? from_bias_ : from_sums_)[static_cast<std::size_t>(rows)];
  }
  const Finish& to_sums() const { return to_sums_; }
  const Finish& to_output(bool non_temporal, bool adds) const { return to_output_[non_temporal][adds]; }
  // For rows that are a multiple of 4.
  const Finish& to_float_quads(bool adds, bool makes_bytes, bool only_low) const {
    return to_float_quads_[adds][makes_bytes][only_low];
  }
  // `all_bytes`: nothing bounds the bytes but their type, and their zero point is zero, or that of a sum.
  const Finish& to_quads(QuadsAdded added, bool divides, bool all_bytes) const {
    return to_quads_[static_cast<std::size_t>(added)][divides][all_bytes];
  }

 private:
  CodeMemory memory_;
  Enter enter_ = nullptr;
  Entries from_sums_{};
  Entries from_bias_{};
  Finish to_sums_{};
  Finish to_output_[2][2]{};
  Finish to_quads_[3][2][2]{};
  Finish to_float_quads_[2][2][2]{};
};

// That of the process, written when it is first asked for. Throws CodeMemoryError.
const SharedCode& shared_code();

}  // namespace sift::cpu
