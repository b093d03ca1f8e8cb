// Few rows of activations: the weights are read once, in order.
//
// With the activations in the first-level cache, loading is what takes the time, and of loads there are as many for one
// activation as for eight: an operand and a weight per non-zero. Operands of several non-zeros are therefore joined to
// one vector, whose weights come with one load.
#pragma once

#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

template <int Width>
struct VectorOf {
  typedef float Type __attribute__((vector_size(Width * 4), aligned(4), may_alias));
};

// Floats of several registers. A vector type of that size would be kept in memory: GCC makes parts of each operation,
// and puts them together after it.
template <int Width>
struct [[gnu::may_alias]] RegistersOf {
  static constexpr int kCount = Width / kVecLanes;
  typename VectorOf<kVecLanes>::Type part[kCount];

  [[gnu::always_inline]] RegistersOf& operator+=(const RegistersOf& other) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) part[i] += other.part[i];
    return *this;
  }
  [[gnu::always_inline]] friend RegistersOf operator+(RegistersOf sum, const RegistersOf& other) {
    return sum += other;
  }
  [[gnu::always_inline]] friend RegistersOf operator+(RegistersOf sum, float value) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) sum.part[i] += value;
    return sum;
  }
  [[gnu::always_inline]] friend RegistersOf operator*(float value, RegistersOf product) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) product.part[i] *= value;
    return product;
  }
};

template <int Width>
struct LanesOf : VectorOf<Width> {};
template <int Width>
  requires(Width > kVecLanes)
struct LanesOf<Width> {
  using Type = RegistersOf<Width>;
};
template <int Width>
using Lanes = typename LanesOf<Width>::Type;

template <int Width>
[[gnu::always_inline]] inline Lanes<Width> lanes_at(const float* x, std::uint32_t column) {
  return *reinterpret_cast<const Lanes<Width>*>(x + std::size_t{column} * Width);
}

// Four values of a list, as floats.
[[gnu::always_inline]] inline Lanes<4> four_values(const float* at) { return *reinterpret_cast<const Lanes<4>*>(at); }
[[gnu::always_inline]] inline Lanes<4> four_values(const std::int8_t* at) {
#if defined(__AVX2__)
  std::int32_t four;
  __builtin_memcpy(&four, at, sizeof four);
  return reinterpret_cast<Lanes<4>>(_mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(four))));
#else
  return Lanes<4>{static_cast<float>(at[0]), static_cast<float>(at[1]), static_cast<float>(at[2]),
                  static_cast<float>(at[3])};
#endif
}

struct FourColumns {
  std::uint32_t of[4];
};

[[gnu::always_inline]] inline FourColumns four_columns(const std::uint16_t* at) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // One load: loads take most of the time.
  std::uint64_t four;
  __builtin_memcpy(&four, at, sizeof four);
  __asm__("" : "+r"(four));
  const auto low = static_cast<std::uint32_t>(four);
  const std::uint64_t high = four >> 32;
  return {
      {low & 0xFFFFU, low >> 16, static_cast<std::uint32_t>(high & 0xFFFFU), static_cast<std::uint32_t>(high >> 16)}};
#else
  return {{at[0], at[1], at[2], at[3]}};
#endif
}

#if defined(__AVX512F__)
[[gnu::always_inline]] inline __m256 join(Lanes<4> low, Lanes<4> high) {
  return _mm256_set_m128(reinterpret_cast<__m128>(high), reinterpret_cast<__m128>(low));
}

template <int Width>
[[gnu::always_inline]] inline Vec joined_operands(const float* x, const std::uint16_t* columns) {
  const auto at = [&](int i) { return lanes_at<Width>(x, columns[i]); };
  if constexpr (Width == 4) {
    const __m512 low = _mm512_castps256_ps512(join(at(0), at(1)));
    const __m512 three = _mm512_insertf32x4(low, reinterpret_cast<__m128>(at(2)), 2);
    return reinterpret_cast<Vec>(_mm512_insertf32x4(three, reinterpret_cast<__m128>(at(3)), 3));
  } else {
    const __m512 low = _mm512_castps256_ps512(reinterpret_cast<__m256>(at(0)));
    return reinterpret_cast<Vec>(_mm512_insertf32x8(low, reinterpret_cast<__m256>(at(1)), 1));
  }
}

// Weight `First` and those after it, each as many times as its operand has lanes, of four that lie at `values`.
template <int Width, int First, typename Value>
[[gnu::always_inline]] inline Vec joined_weights(const Value* values) {
  const auto four = reinterpret_cast<__m128>(four_values(values));
  const auto of_lane = [](int lane) { return First + lane / Width; };
  const __m512i index = _mm512_setr_epi32(of_lane(0), of_lane(1), of_lane(2), of_lane(3), of_lane(4), of_lane(5),
                                          of_lane(6), of_lane(7), of_lane(8), of_lane(9), of_lane(10), of_lane(11),
                                          of_lane(12), of_lane(13), of_lane(14), of_lane(15));
  return reinterpret_cast<Vec>(_mm512_permutexvar_ps(index, _mm512_castps128_ps512(four)));
}
#endif

template <int Width>
[[gnu::always_inline]] inline void finish_row(const StreamArgs& args, std::uint32_t row, Lanes<Width> sum) {
  Lanes<Width>* const acc = reinterpret_cast<Lanes<Width>*>(args.acc + std::size_t{row} * Width);
  if (args.scales != nullptr) sum = args.scales[row] * sum;
  *acc = args.bias != nullptr ? sum + args.bias[row] : *acc + sum;
}

// What processors prefetch by themselves ends with each page, and lags behind.
inline constexpr std::uint32_t kStreamAhead = 512;

// Of the non-zeros that come next: a line of floats for sixteen of them, half a line of columns.
template <typename Value>
[[gnu::always_inline]] inline void prefetch_stream(const StreamArgs& args, const Value* values, std::uint32_t at) {
  __builtin_prefetch(values + at + kStreamAhead, 0, 3);
  __builtin_prefetch(args.columns + at + kStreamAhead, 0, 3);
}

// `Chains` non-zeros in flight: a single sum would wait for its own latency.
template <int Width, int Chains, typename Value>
void stream_of_width(const StreamArgs& args, const Value* values) {
  for (std::uint32_t row = args.row_begin; row < args.row_end; ++row) {
    std::uint32_t i = args.starts[row];
    const std::uint32_t end = args.starts[row + 1];
    Lanes<Width> sums[Chains]{};
    const auto operand = [&](std::uint32_t at) { return lanes_at<Width>(args.x, args.columns[at]); };
    const auto weight = [&](std::uint32_t at) { return static_cast<float>(values[at]); };
    for (; i + Chains <= end; i += Chains) {
#pragma GCC unroll 8
      for (std::uint32_t c = 0; c < Chains; ++c) sums[c] += weight(i + c) * operand(i + c);
    }
    for (; i < end; ++i) sums[0] += weight(i) * operand(i);
#pragma GCC unroll 8
    for (int c = 1; c < Chains; ++c) sums[0] += sums[c];
    finish_row<Width>(args, row, sums[0]);
  }
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Four rows of activations: a register is two operands, but to join them takes longer than to multiply each.
template <typename Value>
void stream_four(const StreamArgs& args, const Value* values) {
  for (std::uint32_t row = args.row_begin; row < args.row_end; ++row) {
    std::uint32_t i = args.starts[row];
    const std::uint32_t end = args.starts[row + 1];
    Lanes<4> sums[8]{};
    const auto add_four = [&](std::uint32_t at, Lanes<4>* to) __attribute__((always_inline)) {
      const FourColumns columns = four_columns(args.columns + at);
      const auto weights = reinterpret_cast<__m128>(four_values(values + at));
      const __m128 each[4] = {_mm_permute_ps(weights, 0x00), _mm_permute_ps(weights, 0x55),
                              _mm_permute_ps(weights, 0xAA), _mm_permute_ps(weights, 0xFF)};
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) to[c] += reinterpret_cast<Lanes<4>>(each[c]) * lanes_at<4>(args.x, columns.of[c]);
    };
    for (; i + 8 <= end; i += 8) {
      prefetch_stream(args, values, i);
      add_four(i, sums);
      add_four(i + 4, sums + 4);
    }
    if (i + 4 <= end) {
      add_four(i, sums);
      i += 4;
    }
    for (; i < end; ++i) sums[4] += static_cast<float>(values[i]) * lanes_at<4>(args.x, args.columns[i]);
    finish_row<4>(args, row, ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7])));
  }
}
#endif

#if defined(__AVX512F__)
template <int Width, typename Value>
void stream_joined(const StreamArgs& args, const Value* values) {
  constexpr int kParts = kVecLanes / Width;
  for (std::uint32_t row = args.row_begin; row < args.row_end; ++row) {
    std::uint32_t i = args.starts[row];
    const std::uint32_t end = args.starts[row + 1];
    Vec sums[4]{};
    for (; i + 8 <= end; i += 8) {
      prefetch_stream(args, values, i);
      const std::uint16_t* const columns = args.columns + i;
      const Value* const eight = values + i;
      const auto four = [&](int from, Vec& first, Vec& second) {
        first += joined_weights<Width, 0>(eight + from) * joined_operands<Width>(args.x, columns + from);
        if constexpr (kParts == 2) {
          second += joined_weights<Width, 2>(eight + from) * joined_operands<Width>(args.x, columns + from + 2);
        }
      };
      four(0, sums[0], sums[1]);
      four(4, sums[2], sums[3]);
    }
    const Vec all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    Lanes<Width> parts[kParts];
    __builtin_memcpy(parts, &all, sizeof(all));
    for (; i < end; ++i) parts[0] += static_cast<float>(values[i]) * lanes_at<Width>(args.x, args.columns[i]);
#pragma GCC unroll 4
    for (int part = 1; part < kParts; ++part) parts[0] += parts[part];
    finish_row<Width>(args, row, parts[0]);
  }
}
#endif

// Operands of four non-zeros become one small vector.
template <typename Value>
void stream_one(const StreamArgs& args, const Value* values) {
  constexpr int kSums = 4;
  const auto four_products = [&](std::uint32_t at) __attribute__((always_inline)) {
    const FourColumns columns = four_columns(args.columns + at);
    const Lanes<4> operands{args.x[columns.of[0]], args.x[columns.of[1]], args.x[columns.of[2]], args.x[columns.of[3]]};
    return four_values(values + at) * operands;
  };
  for (std::uint32_t row = args.row_begin; row < args.row_end; ++row) {
    std::uint32_t i = args.starts[row];
    const std::uint32_t end = args.starts[row + 1];
    Lanes<4> sums[kSums]{};
    for (; i + 4 * kSums <= end; i += 4 * kSums) {
      prefetch_stream(args, values, i);
#pragma GCC unroll 4
      for (std::uint32_t s = 0; s < kSums; ++s) sums[s] += four_products(i + 4 * s);
    }
    // One by one, each of up to 15 would wait for the last.
    for (; i + 4 <= end; i += 4) sums[0] += four_products(i);
    const Lanes<4> four = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float sum = (four[0] + four[1]) + (four[2] + four[3]);
    for (; i < end; ++i) sum += static_cast<float>(values[i]) * args.x[args.columns[i]];
    if (args.scales != nullptr) sum *= args.scales[row];
    args.acc[row] = (args.bias != nullptr ? args.bias[row] : args.acc[row]) + sum;
  }
}

template <typename Value>
void stream_values(const StreamArgs& args, const Value* values) {
  switch (args.width) {
    case 1: return stream_one(args, values);
#if defined(__AVX512F__)
    case 4: return stream_joined<4>(args, values);
    case 8: return stream_joined<8>(args, values);
#else
#if defined(__AVX2__)
    case 4: return stream_four(args, values);
#else
    case 4: return stream_of_width<4, 4>(args, values);
#endif
    case 8: return stream_of_width<8, kVecLanes >= 8 ? 4 : 2>(args, values);
#endif
    default: return stream_of_width<16, kVecLanes >= 8 ? 4 : 1>(args, values);
  }
}

inline void stream(const StreamArgs& args) {
  args.values != nullptr ? stream_values(args, args.values) : stream_values(args, args.bytes);
}

}  // namespace sift::cpu::SIFT_ISA
