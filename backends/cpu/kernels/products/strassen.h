// Strassen's algorithm ("Gaussian Elimination is not Optimal", 1969): the product of two matrices, each cut in halves
// both ways, out of seven products of quarters in place of eight. Products of sums of quarters of one are added to, or
// subtracted from, up to two quarters of the result.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace sift::cpu {

// What is taken of each quarter: upper left, upper right, lower left, lower right; 1, -1 or 0.
using QuarterSigns = std::array<int, 4>;

struct QuarterProduct {
  QuarterSigns left;    // factor
  QuarterSigns right;   // factor
  QuarterSigns result;  // what the product is added to
};

inline constexpr std::array<QuarterProduct, 7> kStrassen{{
    {.left = {1, 0, 0, 1}, .right = {1, 0, 0, 1}, .result = {1, 0, 0, 1}},
    {.left = {0, 0, 1, 1}, .right = {1, 0, 0, 0}, .result = {0, 0, 1, -1}},
    {.left = {1, 0, 0, 0}, .right = {0, 1, 0, -1}, .result = {0, 1, 0, 1}},
    {.left = {0, 0, 0, 1}, .right = {-1, 0, 1, 0}, .result = {1, 0, 1, 0}},
    {.left = {1, 1, 0, 0}, .right = {0, 0, 0, 1}, .result = {-1, 1, 0, 0}},
    {.left = {-1, 0, 1, 0}, .right = {1, 1, 0, 0}, .result = {0, 0, 0, 1}},
    {.left = {0, 1, 0, -1}, .right = {0, 0, 1, 1}, .result = {1, 0, 0, 0}},
}};

// Whether quarter (i, j) of the result gets the products of quarters (i, k) and (k, j), and nothing else.
constexpr bool is_product(const std::array<QuarterProduct, 7>& products) {
  for (unsigned bits = 0; bits < 64; ++bits) {
    const unsigned left = bits & 3;  // (left >> 1, left & 1) of the matrix
    const unsigned right = bits >> 2 & 3;
    const unsigned result = bits >> 4;
    int factor = 0;
    for (const QuarterProduct& product : products) {
      factor += product.left[left] * product.right[right] * product.result[result];
    }
    const bool belongs = left >> 1 == result >> 1 && (left & 1) == right >> 1 && (right & 1) == (result & 1);
    if (factor != (belongs ? 1 : 0)) return false;
  }
  return true;
}
static_assert(is_product(kStrassen));

// The one or two quarters that are taken, and their signs.
struct Taken {
  int quarters[2] = {0, 0};
  float signs[2] = {0, 0};

  explicit Taken(const QuarterSigns& from) {
    int count = 0;
    for (int quarter = 0; quarter < 4; ++quarter) {
      const int sign = from[static_cast<std::size_t>(quarter)];
      if (sign == 0) continue;
      quarters[count] = quarter;
      signs[count++] = static_cast<float>(sign);
    }
  }
  bool is_one() const { return signs[1] == 0; }
};

// The exponent that brings a magnitude to [1/2, 1), such that neither power of two runs over.
inline int exponent_of(float magnitude) {
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  return std::clamp(exponent, -100, 100);
}

}  // namespace sift::cpu
