// The step of a recurrent layer behind its product, once per instruction set; see base/recurrent_cell.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/kernel_table.h"

namespace sift::cpu {

// A part of a step. `gru_reset` comes before the second product of gru, `gru` behind it.
enum class RecurrentStage : std::uint8_t { lstm, gru_linear, gru_reset, gru, tanh, relu };

// The gates of some units, each gate's one after the other.
struct RecurrentCellArgs {
  RecurrentStage stage;
  const float* x;  // of gate 0, what the input adds to it
  std::ptrdiff_t x_gate;
  const float* product;  // of the state before
  std::ptrdiff_t product_gate;
  const float* candidate;  // gru: the product of r h
  float* h;                // the state before becomes the one behind
  float* c;                // lstm
  float* reset;            // gru_reset: becomes r h
  std::int64_t count;
};
using RecurrentCellFunction = void (*)(RecurrentCellArgs);

// That of the same instruction set as `kernels`.
RecurrentCellFunction recurrent_cell_of(const KernelTable& kernels);

// Entries that a lane has in a group, each of which looks up what it is multiplied with.
inline constexpr int kLookupSlots = 4;

// Rows of x that share what is read of the weights.
inline constexpr int kMostLookedUp = 4;

// Sixteen sparse rows times some rows of x: out[row] = bias[row] + the sum over entries of value x[column].
struct LookupArgs {
  const float* x;
  std::ptrdiff_t x_stride;       // of its rows
  int x_rows;                    // up to kMostLookedUp
  const std::uint16_t* columns;  // [groups] of x, the first of the 31 that a group has
  const std::uint32_t* places;   // [groups][16]: which of the 31, a byte for each slot; 31 is a zero
  const float* values;           // [groups][slots][16]
  std::int64_t groups;
  const float* bias;  // [16]
  float* out;
  std::ptrdiff_t out_stride;  // of the results for the rows of x
  int rows;                   // that are written
};
using LookupFunction = void (*)(LookupArgs);

// That of the same instruction set as `kernels`; null where a lookup in registers does not pay.
LookupFunction lookup_of(const KernelTable& kernels);

}  // namespace sift::cpu
