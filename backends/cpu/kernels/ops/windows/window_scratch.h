// The scratch memory of a thread for windows, kept from run to run.
#pragma once

#include <cstddef>
#include <vector>

#include "base/aligned_buffer.h"

namespace sift::cpu {

struct WindowScratch {
  AlignedBuffer plane;                 // a plane, copied with its padding
  AlignedBuffer outputs;               // of a plane whose rows are computed together
  std::vector<std::ptrdiff_t> window;  // offsets of all taps of a window
  std::vector<std::ptrdiff_t> taps;    // offsets of the listed taps
  std::vector<float> weights;
  std::vector<float> scales;
  std::vector<std::size_t> tap_ends;  // where the taps of each stretch end

  void clear() {
    taps.clear();
    weights.clear();
    tap_ends.clear();
  }
};

inline WindowScratch& window_scratch() {
  static thread_local WindowScratch scratch;
  return scratch;
}

}  // namespace sift::cpu
