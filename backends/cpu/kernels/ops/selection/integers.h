// Elements of tensors in the layout of integers, which operators see as words of four bytes at any address.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace sift::cpu {

inline std::int64_t load_integer(const float* words, std::int64_t place) {
  std::int64_t value;
  std::memcpy(&value, words + 2 * place, sizeof value);
  return value;
}

// The one of `count` channels that the index at `place` stands for, if it is negative counted from the end; throws
// std::invalid_argument in the name of an operator if there is no such channel.
inline std::int64_t load_channel(const float* words, std::int64_t place, std::int64_t count, const char* op) {
  const std::int64_t stored = load_integer(words, place);
  const std::int64_t index = stored < 0 ? stored + count : stored;
  if (index < 0 || index >= count) {
    throw std::invalid_argument(std::string(op) + ": index " + std::to_string(stored) + " of an axis of " +
                                std::to_string(count) + " values");
  }
  return index;
}

inline void store_integer(float* words, std::int64_t place, std::int64_t value) {
  std::memcpy(words + 2 * place, &value, sizeof value);
}

}  // namespace sift::cpu
