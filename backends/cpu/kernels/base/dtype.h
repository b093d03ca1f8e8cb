// The type of a tensor's elements, and of packed weights.
#pragma once

#include <cstdint>

namespace sift::cpu {

enum class DType : std::uint8_t { float32 };

constexpr std::int64_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::float32: break;
  }
  return sizeof(float);
}

}  // namespace sift::cpu
