// Quotients that are rounded to integers, as QuantizeLinear does.
#pragma once

#include "simd/int8/lanes.h"

namespace sift::cpu::SIFT_ISA {

// Rounded quotients by a scale, in [low, high]. A product with the reciprocal is off by less than 2^-13: where that is
// all that it is from a half, and for scales whose reciprocal is none, the quotients are divided.
struct Quotients {
  explicit Quotients(float divisor)
      : scale(splat(divisor)),
        reciprocal(splat(1.0F / divisor)),
        has_reciprocal(divisor > 0x1p-100F && divisor < 0x1p100F) {}

  [[gnu::always_inline]] Ints rounded(Floats value, Floats low, Floats high) const {
    if (has_reciprocal) {
      const Floats product = clamp(value * reciprocal, low, high);
      const Ints nearest = round_to_ints(product);
      const Floats rest = product - to_floats(nearest);
      if (!is_any_beyond(rest, 0.5F - 0x1p-12F)) return nearest;
    }
    return round_to_ints(clamp(value / scale, low, high));
  }

  Floats scale;
  Floats reciprocal;
  bool has_reciprocal;
};

}  // namespace sift::cpu::SIFT_ISA
