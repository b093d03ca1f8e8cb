// The types of packed weights, and their conversion to floats.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sift::cpu {

enum class ValueType : std::uint8_t { float32, bfloat16, float16, int8 };

constexpr std::size_t bytes_of(ValueType type) {
  switch (type) {
    case ValueType::float32: return 4;
    case ValueType::bfloat16:
    case ValueType::float16: return 2;
    case ValueType::int8: break;
  }
  return 1;
}

// Kernels of all instruction sets include this file. Functions are static, so that each set has its own copies.
static inline float float_of_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

static inline float float_of_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFU;
  // The exponents' biases differ by 112; the multiplication corrects subnormal numbers.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  const std::uint32_t special = magnitude >= 0x7C00U ? 0x7F800000U | magnitude << 13 : 0U;
  return std::bit_cast<float>(sign | (special != 0 ? special : std::bit_cast<std::uint32_t>(scaled)));
}

static inline float float_at(ValueType type, const std::byte* at) {
  std::uint16_t half = 0;
  switch (type) {
    case ValueType::float32: {
      float value = 0;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case ValueType::bfloat16: std::memcpy(&half, at, sizeof half); return float_of_bfloat16(half);
    case ValueType::float16: std::memcpy(&half, at, sizeof half); return float_of_float16(half);
    case ValueType::int8: break;
  }
  return static_cast<float>(static_cast<std::int8_t>(*at));
}

}  // namespace sift::cpu
