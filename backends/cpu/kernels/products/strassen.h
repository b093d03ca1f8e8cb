// Strassen's algorithm ("Gaussian Elimination is not Optimal", 1969): the product of two matrices, each cut in halves
// both ways, out of seven products of quarters in place of eight. Products of sums of quarters of one are added to, or
// subtracted from, up to two quarters of the result.
#pragma once

#include <array>

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
    const unsigned left = bits & 3;          // (left >> 1, left & 1) of the matrix
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

}  // namespace sift::cpu
