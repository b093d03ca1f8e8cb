// What a thread needs to run windows, kept from one run to the next.
#pragma once

#include <cstddef>
#include <vector>

#include "base/aligned_buffer.h"

namespace sift::cpu {

struct WindowScratch {
  AlignedBuffer plane;                 // copied with its padding
  AlignedBuffer outputs;               // of a plane whose rows are not copied apart
  std::vector<std::ptrdiff_t> window;  // places of a whole window's taps
  std::vector<std::ptrdiff_t> taps;    // places of those that are listed
  std::vector<float> weights;
  std::vector<float> scales;
  std::vector<std::size_t> tap_ends;  // of each stretch's taps

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
