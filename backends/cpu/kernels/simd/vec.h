// Vectors of the instruction set that the including file is compiled for, in that file's own namespace.
//
// The arithmetic is GCC's and Clang's vector extension, so that one template serves every instruction set; only what
// the extension cannot say is written with intrinsics.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef SIFT_ISA
#error "define SIFT_ISA, the namespace, before including a kernel template"
#endif

namespace sift::cpu::SIFT_ISA {

#if defined(__AVX512F__)
inline constexpr int kVecBytes = 64;
inline constexpr int kRegisters = 32;
inline constexpr bool kMemoryOperands = true;
inline constexpr double kPairAbove = 0.3;  // Zen 5
inline constexpr bool kRunsGenerated = true;
#elif defined(__AVX2__)
inline constexpr int kVecBytes = 32;
inline constexpr int kRegisters = 16;
inline constexpr bool kMemoryOperands = true;
inline constexpr double kPairAbove = 1.0;  // Zen 5: never; the sums of two rows halve the tile
inline constexpr bool kRunsGenerated = false;
#elif defined(__aarch64__)
inline constexpr int kVecBytes = 16;
inline constexpr int kRegisters = 32;
inline constexpr bool kMemoryOperands = false;
inline constexpr double kPairAbove = 0.18;  // not measured
inline constexpr bool kRunsGenerated = false;
#else
inline constexpr int kVecBytes = 16;
inline constexpr int kRegisters = 16;
inline constexpr bool kMemoryOperands = false;
inline constexpr double kPairAbove = 0.18;  // not measured
inline constexpr bool kRunsGenerated = false;
#endif

inline constexpr int kBlock = 16;  // floats in a block, whatever the instruction set
inline constexpr int kVecLanes = kVecBytes / 4;
inline constexpr int kVecsPerBlock = kBlock / kVecLanes;

typedef float Vec __attribute__((vector_size(kVecBytes), may_alias));
typedef float UnalignedVec __attribute__((vector_size(kVecBytes), aligned(4), may_alias));
typedef std::int32_t IntVec __attribute__((vector_size(kVecBytes), may_alias));

inline Vec splat(float value) { return value - Vec{}; }
// Two or four floats, one after the other, to be spread over the lanes of a vector of the sums each.
template <typename Sums, int Count>
struct SomeWeights {
  using V = typename Sums::V;

#if defined(__AVX512F__)
  // One load and a shuffle each: it is loads that multiply-adds with operands in memory are short of.
  V all;

  [[gnu::always_inline]] explicit SomeWeights(const float* at) {
    typedef float Group __attribute__((vector_size(16), aligned(4), may_alias));
    if constexpr (Count == 4) {
      const Group group = *reinterpret_cast<const Group*>(at);
      if constexpr (sizeof(V) == sizeof(__m512)) {
        all = reinterpret_cast<V>(_mm512_broadcast_f32x4(reinterpret_cast<__m128>(group)));
      } else {
        all = reinterpret_cast<V>(_mm256_broadcast_f32x4(reinterpret_cast<__m128>(group)));
      }
    } else {
      double pair;
      __builtin_memcpy(&pair, at, sizeof pair);
      if constexpr (sizeof(V) == sizeof(__m512)) {
        all = reinterpret_cast<V>(_mm512_set1_pd(pair));
      } else {
        all = reinterpret_cast<V>(_mm256_set1_pd(pair));
      }
    }
  }
  template <int At>
  [[gnu::always_inline]] V splat() const {
    if constexpr (sizeof(V) == sizeof(__m512)) {
      return reinterpret_cast<V>(_mm512_permute_ps(reinterpret_cast<__m512>(all), At * 0b01010101));
    } else {
      return reinterpret_cast<V>(_mm256_permute_ps(reinterpret_cast<__m256>(all), At * 0b01010101));
    }
  }
#else
  const float* at;

  [[gnu::always_inline]] explicit SomeWeights(const float* weights) : at(weights) {}
  template <int At>
  [[gnu::always_inline]] V splat() const {
    return at[At] - V{};
  }
#endif
};
inline Vec load(const void* at) { return *static_cast<const Vec*>(at); }
// The same in a register, so that what uses it more than once loads it once.
[[gnu::always_inline]] inline Vec loaded(const void* at) {
  Vec value = load(at);
#if defined(__AVX512F__)
  __asm__("" : "+v"(value));
#endif
  return value;
}
inline void store(void* at, Vec value) { *static_cast<Vec*>(at) = value; }
inline Vec load_unaligned(const float* at) { return *reinterpret_cast<const UnalignedVec*>(at); }
inline void store_unaligned(float* at, Vec value) { *reinterpret_cast<UnalignedVec*>(at) = value; }

// A non-temporal, aligned store: what is too large to stay in one until it is read need not be fetched to be
// overwritten. Other threads see it after `end_non_temporal_stores`.
inline void store_non_temporal(float* at, Vec value) {
#if defined(__AVX512F__)
  _mm512_stream_ps(at, reinterpret_cast<__m512>(value));
#elif defined(__AVX2__)
  _mm256_stream_ps(at, reinterpret_cast<__m256>(value));
#else
  store(at, value);
#endif
}
inline void end_non_temporal_stores() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

template <bool NonTemporal>
[[gnu::always_inline]] inline void store_as(float* at, Vec value) {
  if constexpr (NonTemporal) {
    store_non_temporal(at, value);
  } else {
    store(at, value);
  }
}

// use(Flag<flag>{}), so that a loop in it is compiled for either value.
template <bool Value>
struct Flag {
  static constexpr bool value = Value;
};
template <typename Use>
[[gnu::always_inline]] inline void with_flag(bool flag, Use use) {
  if (flag) {
    use(Flag<true>{});
  } else {
    use(Flag<false>{});
  }
}

// `address`, in a register of its own, so that what is loaded next to it is addressed without an index register:
// Intel's cores issue a multiply-add with an indexed operand as two operations.
template <typename T>
[[gnu::always_inline]] inline const T* own_register(const T* address) {
  __asm__("" : "+r"(address));
  return address;
}

// NaN in `a` stays NaN, as onnxruntime's Relu and Clip have it: of a NaN and a number, the instructions give the
// second.
inline Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_max_ps(reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(a)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vec>(_mm256_max_ps(reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(a)));
#else
  return a < b ? b : a;
#endif
}
inline Vec min(Vec a, Vec b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_min_ps(reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(a)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vec>(_mm256_min_ps(reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(a)));
#else
  return b < a ? b : a;
#endif
}

// 1 / x of a finite x that is not zero, to about one unit in the last place. A division of 16 lanes holds the
// multipliers up for as long as a dozen multiply-adds.
inline Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
  // 14 bits, and a step of Newton's.
  const Vec near = reinterpret_cast<Vec>(_mm512_rcp14_ps(reinterpret_cast<__m512>(x)));
  return near + near * (1.0F - x * near);
#else
  return 1.0F / x;
#endif
}

// Lane i is lane from[i] of `a`, or from kVecLanes on of `b`. Of constants, compilers make a shuffle.
[[gnu::always_inline]] inline Vec shuffle(Vec a, Vec b, const std::int32_t (&from)[kVecLanes]) {
#if defined(__clang__)
  Vec result;
#pragma GCC unroll 16
  for (int lane = 0; lane < kVecLanes; ++lane) {
    result[lane] = from[lane] < kVecLanes ? a[from[lane]] : b[from[lane] - kVecLanes];
  }
  return result;
#else
  return __builtin_shuffle(a, b, *reinterpret_cast<const IntVec*>(from));
#endif
}

// The first `lanes` lanes; the others are zero, and their memory is not touched.
inline Vec load_lanes(const float* at, int lanes) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << lanes) - 1U), at));
#else
  Vec value{};
  for (int lane = 0; lane < kVecLanes; ++lane) {
    if (lane < lanes) value[lane] = at[lane];
  }
  return value;
#endif
}

inline void store_lanes(float* at, Vec value, int lanes) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(at, static_cast<__mmask16>((1U << lanes) - 1U), reinterpret_cast<__m512>(value));
#else
  for (int lane = 0; lane < kVecLanes; ++lane) {
    if (lane < lanes) at[lane] = value[lane];
  }
#endif
}

}  // namespace sift::cpu::SIFT_ISA
