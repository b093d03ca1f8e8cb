// Weights of eight bits as quads: four adjacent input channels at one tap. A quad that is all zero is left out. Weights
// that are more than eight bits, as those of u8 whose zero point is far from 128, are sums of several quads of a
// column.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/conv_geometry.h"
#include "base/page_allocator.h"

namespace sift::cpu {

// As much of four numbers as a quad of bytes in [-most, most] holds, up to those of s8; what is left of them stays.
std::uint32_t take_quad(std::span<int, 4> numbers, int most);

class QuadWeights {
 public:
  // values: minus their zero point, [rows][channels / groups][kernel_h][kernel_w]; rows of group g read the channels of
  // group g. Throws std::invalid_argument if sizes do not fit.
  QuadWeights(std::int64_t rows, std::int64_t channels, std::int64_t kernel_h, std::int64_t kernel_w,
              std::int64_t groups, std::span<const std::int8_t> values);
  QuadWeights(std::int64_t rows, std::int64_t channels, std::int64_t kernel_h, std::int64_t kernel_w,
              std::int64_t groups, std::span<const std::int16_t> values);

  // From the number of live quads of each row, their columns and their bytes, as they are listed below. Throws
  // std::invalid_argument if they do not fit.
  static QuadWeights from_rows(std::int64_t rows, std::int64_t channels, std::int64_t kernel_h, std::int64_t kernel_w,
                               std::int64_t groups, std::span<const std::uint32_t> counts,
                               std::span<const std::uint32_t> columns, std::span<const std::uint32_t> quads);

  std::int64_t rows() const { return rows_; }
  std::int64_t channels() const { return channels_; }
  std::int64_t kernel_h() const { return kernel_h_; }
  std::int64_t kernel_w() const { return kernel_w_; }
  std::int64_t groups() const { return groups_; }
  std::int64_t taps() const { return kernel_h_ * kernel_w_; }
  // Of the input, of which groups that do not begin at multiples of four share some.
  std::int64_t channel_quads() const { return (channels_ + 3) / 4; }
  // Quads that a dense row of its group has, times rows: what live quads are a share of.
  std::int64_t all_quads() const;
  std::int64_t live_quads() const { return static_cast<std::int64_t>(quads_.size()); }

  // Lists of live quads, row after row: starts [rows + 1], columns, which do not descend, and four bytes each. A column
  // is quad * taps + tap.
  std::span<const std::uint32_t> starts() const { return starts_; }
  std::span<const std::uint32_t> columns() const { return columns_; }
  std::span<const std::uint32_t> quads() const { return quads_; }
  // Of all weights of a row, which a zero point of the input multiplies.
  std::span<const std::int32_t> row_sums() const { return row_sums_; }

  std::int64_t bytes() const;

 private:
  QuadWeights(std::int64_t rows, std::int64_t channels, std::int64_t kernel_h, std::int64_t kernel_w,
              std::int64_t groups);

  template <typename Value>
  void list(std::span<const Value> values);

  template <typename T>
  using Pages = std::vector<T, PageAllocator<T>>;

  std::int64_t rows_;
  std::int64_t channels_;
  std::int64_t kernel_h_;
  std::int64_t kernel_w_;
  std::int64_t groups_;
  std::vector<std::uint32_t> starts_;
  Pages<std::uint32_t> columns_;
  Pages<std::uint32_t> quads_;
  std::vector<std::int32_t> row_sums_;
};

}  // namespace sift::cpu
