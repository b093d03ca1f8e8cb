// Functions of two arrays that the kernels of layouts do not have.
#pragma once

#include <cmath>

#include "simd/vec.h"
#include "simd/views/kernel_table.h"

namespace sift::cpu::SIFT_ISA {

template <typename Function>
[[gnu::always_inline]] inline void combine_each(const BinaryFunctionArgs& args, Function function) {
  std::int64_t i = 0;
  for (; i + kVecLanes <= args.count; i += kVecLanes) {
    store_unaligned(args.out + i, function(load_unaligned(args.a + i), load_unaligned(args.b + i)));
  }
  if (i < args.count) {
    const int rest = static_cast<int>(args.count - i);
    store_lanes(args.out + i, function(load_lanes(args.a + i, rest), load_lanes(args.b + i, rest)), rest);
  }
}

// A comparison with NaN is false, so that of the second operand is taken; the first one is asked for it.
inline Vec larger(Vec a, Vec b) { return (a > b) | (a != a) ? a : b; }
inline Vec smaller(Vec a, Vec b) { return (a < b) | (a != a) ? a : b; }

// As the standard library has it, value by value.
inline Vec power(Vec a, Vec b) {
  for (int lane = 0; lane < kVecLanes; ++lane) a[lane] = std::pow(a[lane], b[lane]);
  return a;
}

inline Vec holds(IntVec comparison) { return comparison ? splat(1) : splat(0); }

inline void binary(const BinaryFunctionArgs& args) {
  const Vec fill = splat(args.fill);
  switch (args.kind) {
    case BinaryFunction::divide: return combine_each(args, [](Vec a, Vec b) { return a / b; });
    case BinaryFunction::maximum: return combine_each(args, [](Vec a, Vec b) { return larger(a, b); });
    case BinaryFunction::minimum: return combine_each(args, [](Vec a, Vec b) { return smaller(a, b); });
    case BinaryFunction::power: return combine_each(args, [](Vec a, Vec b) { return power(a, b); });
    case BinaryFunction::less: return combine_each(args, [](Vec a, Vec b) { return holds(a < b); });
    case BinaryFunction::less_or_equal: return combine_each(args, [](Vec a, Vec b) { return holds(a <= b); });
    case BinaryFunction::greater: return combine_each(args, [](Vec a, Vec b) { return holds(a > b); });
    case BinaryFunction::greater_or_equal: return combine_each(args, [](Vec a, Vec b) { return holds(a >= b); });
    case BinaryFunction::equal: return combine_each(args, [](Vec a, Vec b) { return holds(a == b); });
    case BinaryFunction::where_true: return combine_each(args, [&](Vec a, Vec b) { return b != splat(0) ? a : fill; });
    case BinaryFunction::where_false: return combine_each(args, [&](Vec a, Vec b) { return b != splat(0) ? fill : a; });
  }
}

}  // namespace sift::cpu::SIFT_ISA
