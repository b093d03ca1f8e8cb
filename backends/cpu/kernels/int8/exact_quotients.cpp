#include "int8/exact_quotients.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace sift::cpu {
namespace {

constexpr int kBits = 24;  // of a float's significand

// The significand of a positive normal float.
std::uint64_t significand(float value) {
  int exponent = 0;
  return static_cast<std::uint64_t>(std::ldexp(std::frexp(value, &exponent), kBits));
}

// Whether some float is as near to this product of a divisor and a midpoint, which is below 2^50, as the head of the
// header says. A float is a multiple of the last place of 24 bits.
bool is_near_float(std::uint64_t product) {
  constexpr std::uint64_t kNear = 16;  // of 2^50: 2^-46
  const std::uint64_t place = std::uint64_t{1} << (std::bit_width(product) - kBits);
  const std::uint64_t rest = product % place;
  return std::min(rest, place - rest) <= kNear;
}

}  // namespace

bool divides_in_code(float divisor) {
  if (!(divisor > 0x1p-60F && divisor < 0x1p60F)) return false;
  const std::uint64_t own = significand(divisor);
  for (int k = 0; k <= 256; ++k) {
    const std::uint64_t half = significand(static_cast<float>(k) + 0.5F);
    // Below a power of two, floats are twice as close.
    const std::uint64_t below = half == std::uint64_t{1} << (kBits - 1) ? 4 * half - 1 : 2 * half - 1;
    if (is_near_float(own * below) || is_near_float(own * (2 * half + 1))) return false;
  }
  return true;
}

}  // namespace sift::cpu
