// Weights of eight bits as quads: four adjacent input channels at one tap. A quad that is all zero is left out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/conv_geometry.h"
#include "base/page_allocator.h"

namespace sift::cpu {

class QuadWeights {
 public:
  // values: s8, minus their zero point, [rows][channels / groups][kernel_h][kernel_w]; rows of group g read the
  // channels of group g. Throws std::invalid_argument if sizes do not fit.
  QuadWeights(std::int64_t rows, std::int64_t channels, std::int64_t kernel_h, std::int64_t kernel_w,
              std::int64_t groups, std::span<const std::int8_t> values);

  std::int64_t rows() const { return rows_; }
  std::int64_t channels() const { return channels_; }
  std::int64_t kernel_h() const { return kernel_h_; }
  std::int64_t kernel_w() const { return kernel_w_; }
  std::int64_t taps() const { return kernel_h_ * kernel_w_; }
  // Of the input, of which groups that do not begin at multiples of four share some.
  std::int64_t channel_quads() const { return (channels_ + 3) / 4; }
  // Quads that a dense row of its group has, times rows: what live quads are a share of.
  std::int64_t all_quads() const;
  std::int64_t live_quads() const { return static_cast<std::int64_t>(quads_.size()); }

  // Lists of live quads, row after row: starts [rows + 1], columns, in ascending order, and four bytes each. A column
  // is quad * taps + tap.
  std::span<const std::uint32_t> starts() const { return starts_; }
  std::span<const std::uint32_t> columns() const { return columns_; }
  std::span<const std::uint32_t> quads() const { return quads_; }
  // Of all weights of a row, which a zero point of the input multiplies.
  std::span<const std::int32_t> row_sums() const { return row_sums_; }

  std::int64_t bytes() const;

 private:
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
