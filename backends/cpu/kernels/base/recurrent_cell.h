// The cells of recurrent layers, with gates in the order of ONNX.
#pragma once

#include <cstdint>

namespace sift::cpu {

//   lstm        gates i, o, f, g: c = f c + i g, h = o tanh(c)
//   gru         gates z, r, n; linear_before_reset = 0: the product of gate n is with r h
//   gru_linear  the same with linear_before_reset = 1: r scales the product of gate n with h
//   tanh, relu  one gate: h is its activation
enum class RecurrentCell : std::uint8_t { lstm, gru, gru_linear, tanh, relu };

inline std::int64_t gate_count(RecurrentCell cell) {
  switch (cell) {
    case RecurrentCell::lstm: return 4;
    case RecurrentCell::gru:
    case RecurrentCell::gru_linear: return 3;
    case RecurrentCell::tanh:
    case RecurrentCell::relu: break;
  }
  return 1;
}

}  // namespace sift::cpu
