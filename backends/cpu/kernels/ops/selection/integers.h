// Elements of tensors in the layout of integers, which operators see as words of four bytes at any address.
#pragma once

#include <cstdint>
#include <cstring>

namespace sift::cpu {

inline std::int64_t load_integer(const float* words, std::int64_t place) {
  std::int64_t value;
  std::memcpy(&value, words + 2 * place, sizeof value);
  return value;
}

inline void store_integer(float* words, std::int64_t place, std::int64_t value) {
  std::memcpy(words + 2 * place, &value, sizeof value);
}

}  // namespace sift::cpu
