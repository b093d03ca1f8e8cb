// Lines that generated rows will need soon: what their sums are stored over or added to, and the code that comes next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/op.h"
#include "base/prefetcher.h"
#include "jit/code_call.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// Prefetches what rows are stored over, or what is added to them, while the block before is multiplied. Inlined: GCC
// takes a function that only prefetches for one that does nothing, and leaves out its calls.
[[gnu::always_inline]] inline void prefetch_output(const DirectOutput& direct, std::int64_t first, std::int64_t rows,
                                                   std::ptrdiff_t block) {
  const std::ptrdiff_t start = first * direct.row_stride + block;
  const std::ptrdiff_t step = direct.row_stride;
  if (const float* line = direct.residual; line != nullptr) {
    line += start;
    for (std::int64_t row = 0; row < rows; ++row, line += step) __builtin_prefetch(line, 0);
  }
  if (!direct.non_temporal && direct.out != direct.residual) {
    const float* line = direct.out + start;
    for (std::int64_t row = 0; row < rows; ++row, line += step) __builtin_prefetch(line, 1);
  }
}

// Prefetches what sums are stored over as bytes or as floats beside them, and what is added to them. Those of a group
// of rows are a few lines of each block, far from those of the next block, which processors do not foresee.
class QuadsAhead {
 public:
  QuadsAhead(const QuadOutput& quads, std::int64_t first_row, std::int64_t group_rows, std::int64_t blocks)
      : quads_(quads),
        stores_bytes_(quads.floats.out == nullptr || quads.floats.makes_bytes),
        row_(first_row),
        end_row_(quads.block_bytes / kBlockBytes * 4),
        group_rows_(group_rows),
        blocks_(blocks) {
    const std::int64_t skipped = std::min(kAhead, blocks);
    // The group before has asked for them.
    if (first_row > 0) block_ = skipped;
    for (std::int64_t i = 0; i < kAhead && first_row == 0; ++i) step();
    if (block_ == blocks_) row_ += group_rows_, block_ = 0;
  }

  // The next block's, or those of the next group's first one.
  void step() {
    if (row_ >= end_row_) return;
    const std::int64_t rows = std::min(end_row_ - row_, group_rows_);
    const std::ptrdiff_t at = block_ * quads_.block_bytes + row_ / 4 * kBlockBytes;
    const FloatOutput& floats = quads_.floats;
    for (std::int64_t line = 0; line < rows / 4; ++line) {
      if (quads_.other != nullptr) __builtin_prefetch(quads_.other + at + line * kLineBytes, 0);
      if (stores_bytes_) __builtin_prefetch(quads_.out + at + line * kLineBytes, 1);
    }
    for (std::int64_t line = 0; line < rows && floats.out != nullptr; ++line) {
      const std::ptrdiff_t place = at * 4 + line * kLineBytes;
      if (floats.residual != nullptr) __builtin_prefetch(floats.residual + place, 0);
      if (floats.residual != floats.out) __builtin_prefetch(floats.out + place, 1);
    }
    if (++block_ == blocks_) row_ += group_rows_, block_ = 0;
  }

 private:
  static constexpr std::int64_t kAhead = 2;  // blocks

  const QuadOutput& quads_;
  bool stores_bytes_;
  std::int64_t row_;
  std::int64_t end_row_;
  std::int64_t group_rows_;
  std::int64_t blocks_;
  std::int64_t block_ = 0;
};

// What is executed after a part, of which bodies prefetch some lines with every block of the part: where blocks are
// few, the rest is prefetched before.
class PartAhead {
 public:
  PartAhead(const void* first, const void* end, std::int64_t lines_per_block, std::int64_t blocks)
      : first_(reinterpret_cast<std::uintptr_t>(first)),
        lines_(ceil_div(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(end) - first_), kLineBytes)),
        step_(lines_per_block),
        rest_(blocks * lines_per_block),
        rest_step_(ceil_div(std::max<std::int64_t>(lines_ - rest_, 0), blocks)) {}

  // Where bodies begin for the next block; where all has been prefetched, what they ask for is there.
  const std::byte* next() {
    for (const std::int64_t end = std::min(rest_ + rest_step_, lines_); rest_ < end; ++rest_) {
      prefetch_line(first_ + static_cast<std::uintptr_t>(rest_ * kLineBytes));
    }
    const std::int64_t at = at_ < lines_ ? at_ : 0;
    at_ = at + step_;
    return reinterpret_cast<const std::byte*>(first_ + static_cast<std::uintptr_t>(at * kLineBytes));
  }

 private:
  std::uintptr_t first_;
  std::int64_t lines_;
  std::int64_t step_;
  std::int64_t rest_;
  std::int64_t rest_step_;
  std::int64_t at_ = 0;
};

}  // namespace sift::cpu
