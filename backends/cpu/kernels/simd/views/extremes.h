// Places of the largest or smallest values, of a row and of rows that lie in the lanes, and of values beyond a bound.
#pragma once

#include "simd/vec.h"
#include "simd/views/kernel_table.h"

namespace sift::cpu::SIFT_ISA {

// A bit for each lane of a comparison.
[[gnu::always_inline]] inline std::uint32_t bits_of(IntVec holds) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(holds), reinterpret_cast<__m512i>(holds));
#elif defined(__AVX2__)
  return static_cast<std::uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(holds)));
#else
  std::uint32_t bits = 0;
  for (int lane = 0; lane < kVecLanes; ++lane) bits |= static_cast<std::uint32_t>(holds[lane] & 1) << lane;
  return bits;
#endif
}

// The extreme of a row whose first value is a number; others that are not are left out.
template <bool IsLeast>
inline float extreme_value(const float* x, std::int64_t count) {
  constexpr int kVecs = 4;
  const auto further = [](Vec a, Vec b) { return IsLeast ? min(a, b) : max(a, b); };
  const auto further_of = [](float a, float b) { return (IsLeast ? b < a : a < b) ? b : a; };
  float extreme = x[0];
  if (count < kVecLanes) {
    for (std::int64_t i = 1; i < count; ++i) extreme = further_of(extreme, x[i]);
    return extreme;
  }
  Vec most[kVecs];
  for (Vec& each : most) each = splat(extreme);
  std::int64_t i = 0;
  for (; i + kVecs * kVecLanes <= count; i += kVecs * kVecLanes) {
    for (int v = 0; v < kVecs; ++v) most[v] = further(most[v], load_unaligned(x + i + v * kVecLanes));
  }
  for (; i + kVecLanes <= count; i += kVecLanes) most[0] = further(most[0], load_unaligned(x + i));
  // Some of the last values twice.
  most[1] = further(most[1], load_unaligned(x + count - kVecLanes));
  const Vec all = further(further(most[0], most[1]), further(most[2], most[3]));
  float lanes[kVecLanes];
  store_unaligned(lanes, all);
  for (int half = kVecLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] = further_of(lanes[lane], lanes[lane + half]);
  }
  return lanes[0];
}

// The first place where `holds` is true of a vector's lanes, or of a value by itself; `count` if there is none.
template <typename Holds>
[[gnu::always_inline]] inline std::int64_t first_place(const float* x, std::int64_t count, Holds holds) {
  std::int64_t i = 0;
  for (; i + kVecLanes <= count; i += kVecLanes) {
    const std::uint32_t found = bits_of(holds(load_unaligned(x + i)));
    if (found != 0) return i + __builtin_ctz(found);
  }
  if (i < count && count >= kVecLanes) {
    // Those that it has again do not hold.
    i = count - kVecLanes;
    const std::uint32_t found = bits_of(holds(load_unaligned(x + i)));
    return found != 0 ? i + __builtin_ctz(found) : count;
  }
  while (i < count && !holds(x[i])) ++i;
  return i;
}

inline std::int64_t extreme_of_row(const float* x, std::int64_t count, bool is_least, bool takes_last) {
  if (x[0] != x[0]) return 0;
  const float extreme = is_least ? extreme_value<true>(x, count) : extreme_value<false>(x, count);
  if (!takes_last) return first_place(x, count, [extreme](auto value) { return value == extreme; });
  std::int64_t last = count - 1;
  while (x[last] != extreme) --last;
  return last;
}

inline float extreme_value_of_row(const float* x, std::int64_t count, bool is_least) {
  if (x[0] != x[0]) return x[0];
  return is_least ? extreme_value<true>(x, count) : extreme_value<false>(x, count);
}

template <bool IsLeast>
inline void extreme_values_as(const ExtremeValuesArgs& args) {
  // NaN in the first stays, and is left out of the second.
  const auto further = [](Vec a, Vec b) { return IsLeast ? min(a, b) : max(a, b); };
  std::int64_t first = 0;
  constexpr int kVecs = 4;
  for (; first + kVecs * kVecLanes <= args.lanes; first += kVecs * kVecLanes) {
    Vec most[kVecs];
    for (int v = 0; v < kVecs; ++v) most[v] = load_unaligned(args.x + first + v * kVecLanes);
    for (std::int64_t i = 1; i < args.count; ++i) {
      const float* const x = args.x + i * args.stride + first;
      for (int v = 0; v < kVecs; ++v) most[v] = further(most[v], load_unaligned(x + v * kVecLanes));
    }
    for (int v = 0; v < kVecs; ++v) store_unaligned(args.out + first + v * kVecLanes, most[v]);
  }
  for (; first < args.lanes; first += kVecLanes) {
    const int lanes = static_cast<int>(args.lanes - first < kVecLanes ? args.lanes - first : kVecLanes);
    Vec most = load_lanes(args.x + first, lanes);
    for (std::int64_t i = 1; i < args.count; ++i) {
      most = further(most, load_lanes(args.x + i * args.stride + first, lanes));
    }
    store_lanes(args.out + first, most, lanes);
  }
}

inline void extreme_values_of_lanes(const ExtremeValuesArgs& args) {
  args.is_least ? extreme_values_as<true>(args) : extreme_values_as<false>(args);
}

// Of `Vecs` vectors from lane `first` on; `load_at` reads one.
template <bool IsLeast, bool TakesLast, int Vecs, typename LoadAt>
[[gnu::always_inline]] inline void extremes_of_vectors(const ExtremeLanesArgs& args, int first, LoadAt load_at) {
  Vec most[Vecs];
  IntVec places[Vecs];
  for (int v = 0; v < Vecs; ++v) {
    most[v] = load_at(args.x + first + v * kVecLanes);
    places[v] = IntVec{};
  }
  for (std::int64_t i = 1; i < args.count; ++i) {
    const float* const x = args.x + i * args.stride + first;
    const IntVec place = static_cast<std::int32_t>(i) - IntVec{};
    for (int v = 0; v < Vecs; ++v) {
      const Vec value = load_at(x + v * kVecLanes);
      const auto is_further = [&] {
        if constexpr (IsLeast) return TakesLast ? value <= most[v] : value < most[v];
        return TakesLast ? value >= most[v] : value > most[v];
      }();
      most[v] = is_further ? value : most[v];
      places[v] = is_further ? place : places[v];
    }
  }
  for (int v = 0; v < Vecs; ++v) {
    for (int lane = 0; lane < kVecLanes; ++lane) args.out[first + v * kVecLanes + lane] = places[v][lane];
  }
}

template <bool IsLeast, bool TakesLast>
inline void extremes_as(const ExtremeLanesArgs& args) {
  constexpr int kVecs = 4;
  const auto whole = [](const float* at) { return load_unaligned(at); };
  int first = 0;
  for (; first + kVecs * kVecLanes <= args.lanes; first += kVecs * kVecLanes) {
    extremes_of_vectors<IsLeast, TakesLast, kVecs>(args, first, whole);
  }
  for (; first + kVecLanes <= args.lanes; first += kVecLanes) {
    extremes_of_vectors<IsLeast, TakesLast, 1>(args, first, whole);
  }
  const int left = args.lanes - first;
  if (left > 0) {
    extremes_of_vectors<IsLeast, TakesLast, 1>(args, first, [&](const float* at) { return load_lanes(at, left); });
  }
}

inline void extremes_of_lanes(const ExtremeLanesArgs& args) {
  with_flag(args.is_least, [&](auto is_least) {
    with_flag(args.takes_last,
              [&](auto takes_last) { extremes_as<decltype(is_least)::value, decltype(takes_last)::value>(args); });
  });
}

template <bool IsLess>
inline std::int64_t next_as(const float* x, std::int64_t count, float bound) {
  constexpr int kStride = 4 * kVecLanes;
  const auto is_beyond = [bound](auto value) {
    if constexpr (IsLess) {
      return value < bound;
    } else {
      return (value > bound) | (value != value);
    }
  };
  std::int64_t i = 0;
  for (; i + kStride <= count; i += kStride) {
    const auto at = [&](int v) { return is_beyond(load_unaligned(x + i + v * kVecLanes)); };
    if (bits_of((at(0) | at(1)) | (at(2) | at(3))) != 0) break;
  }
  return i + first_place(x + i, count - i, is_beyond);
}

inline std::int64_t next_beyond(const float* x, std::int64_t count, float bound, bool is_less) {
  return is_less ? next_as<true>(x, count, bound) : next_as<false>(x, count, bound);
}

}  // namespace sift::cpu::SIFT_ISA
