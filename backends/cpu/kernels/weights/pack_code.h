// Weights as machine code, see generated_rows.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "jit/code_memory.h"
#include "jit/generated_rows.h"
#include "weights/packed_weights.h"
#include "weights/row_source.h"

namespace sift::cpu {

// Makes the code of a group of a convolution, a slice of all its channels, which suits every shape; on the threads of
// `pool`, if there is one. Throws CodeMemoryError where the system gives no memory for code.
void pack_code(std::span<const WeightRow> rows, std::int64_t channels, std::int64_t taps, std::int64_t unit_channels,
               std::int64_t group_rows, PackedSlice& slice, CodeWeight weight = CodeWeight::single,
               ThreadPool* pool = nullptr);

}  // namespace sift::cpu
