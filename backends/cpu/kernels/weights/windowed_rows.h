// Sparse weights, sixteen rows side by side, in windows of columns: simd/packed/windows.h has the form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/large_pages.h"
#include "base/value_type.h"
#include "simd/packed/windows.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

class WindowedRows {
 public:
  // `values` are those of `weights`, row by row, and padding behind them. Nothing if they take more than `most` bytes.
  static std::optional<WindowedRows> pack(const SparseWeights& weights, ValueType type,
                                          std::span<const std::byte> values, std::size_t most);

  ColumnWindows args() const { return {stops_.data(), moves_.data(), starts_.data(), type_}; }
  std::size_t bytes() const;

 private:
  // Writes all stops. `values` are as in pack(); Value is an integer of as many bytes as one of them.
  template <typename Value>
  void fill(const SparseWeights& weights, const std::byte* values);

  ValueType type_ = ValueType::int8;
  std::vector<std::byte, LargePageAllocator<std::byte>> stops_;
  std::vector<std::uint8_t, LargePageAllocator<std::uint8_t>> moves_;
  std::vector<std::size_t> starts_;
};

}  // namespace sift::cpu
