#include "weights/packed_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/microarchitecture.h"

namespace sift::cpu {
namespace {

constexpr std::int64_t kSliceColumns = 1 << 16;
constexpr std::int64_t kChunks = 64;
// Kernels multiply up to as many rows together.
constexpr std::int64_t kChunkRows = 16;
// Of more floats, columns are a small share of the bytes, and windows take more of them than bits.
constexpr double kFloatsInWindowsBelow = 0.125;
constexpr float kMostInt8 = 127.0F;

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

// The nearest, ties to even; weights are finite.
std::uint16_t bfloat16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

// The nearest, ties to even; infinite where the format does not reach.
std::uint16_t float16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const float magnitude = std::abs(value);
  if (magnitude >= 65520.0F) return sign | 0x7C00U;
  if (magnitude < 0x1p-14F) {
    // Subnormal numbers are multiples of 2^-24; nearbyint rounds ties to even.
    return sign | static_cast<std::uint16_t>(std::nearbyint(magnitude * 0x1p24F));
  }
  const std::uint32_t own = bits & 0x7FFFFFFFU;
  return sign | static_cast<std::uint16_t>((own - 0x38000000U + 0xFFFU + ((own >> 13) & 1U)) >> 13);
}

bool reaches(const SparseWeights& weights) {
  for (std::int64_t row = 0; row < weights.rows(); ++row) {
    for (const float value : weights.row_values(row)) {
      if ((float16_of(value) & 0x7FFFU) >= 0x7C00U) return false;
    }
  }
  return true;
}

void put(ValueType type, float value, std::byte* to) {
  std::uint16_t half = 0;
  switch (type) {
    case ValueType::float32: std::memcpy(to, &value, sizeof value); return;
    case ValueType::bfloat16: half = bfloat16_of(value); break;
    case ValueType::float16: half = float16_of(value); break;
    case ValueType::int8: *to = static_cast<std::byte>(static_cast<std::int8_t>(value)); return;
  }
  std::memcpy(to, &half, sizeof half);
}

std::int8_t whole(float value) {
  if (!(value >= -128.0F && value <= kMostInt8) || value != std::nearbyint(value)) {
    throw std::invalid_argument("packed rows: weights of int8 with scales must be whole numbers from -128 to 127");
  }
  return static_cast<std::int8_t>(value);
}

}  // namespace

PackedRows PackedRows::pack(const SparseWeights& weights, ValueType type, PackedScales scales,
                            const PackedFor& kernels) {
  PackedRows packed;
  packed.rows_ = weights.rows();
  packed.columns_ = weights.columns();
  packed.nnz_ = weights.nnz();
  if (packed.rows_ == 0 || packed.columns_ == 0) throw std::invalid_argument("matmul: the weights are empty");
  packed.words_ = (packed.columns_ + kWordColumns - 1) / kWordColumns;
  packed.type_ = type == ValueType::float16 && !reaches(weights) ? ValueType::float32 : type;
  if (scales.group_columns < 0 || scales.group_columns % kGroupMultiple != 0) {
    throw std::invalid_argument("packed rows: a group must have a multiple of 16 columns");
  }
  if (scales.group_columns >= packed.columns_) scales.group_columns = 0;
  if (scales.group_columns != 0) {
    packed.groups_ = (packed.columns_ + scales.group_columns - 1) / scales.group_columns;
    if (packed.type_ != ValueType::int8) throw std::invalid_argument("packed rows: only int8 has groups of columns");
  }
  if (!scales.factors.empty() && scales.factors.size() != index(packed.rows_ * packed.groups_)) {
    throw std::invalid_argument("packed rows: one scale per row, or per row and group, is needed: " +
                                std::to_string(packed.rows_ * packed.groups_) + ", and not " +
                                std::to_string(scales.factors.size()));
  }
  packed.scales_ = std::move(scales);
  const bool lists = packed.suits_lists(kernels);
  const bool suits_windows = kernels.most_window_bytes > 0 && packed.groups_ == 1 &&
                             (packed.type_ != ValueType::float32 || packed.density() < kFloatsInWindowsBelow);
  if (!lists || suits_windows || packed.type_ == ValueType::int8) packed.pack_values(weights);
  if (suits_windows && !packed.masks_.empty()) packed.use_windows(weights, kernels.most_window_bytes);
  if (lists && !packed.is_windowed()) {
    packed.pack_lists(weights);
    packed.release_values();
    packed.sums_.clear();
    packed.starts_.clear();
  }
  packed.cut(weights);
  return packed;
}

bool PackedRows::suits_lists(const PackedFor& kernels) const {
  if (type_ == ValueType::int8) return groups_ == 1 && nnz_ > 0 && density() < kernels.bytes_as_lists_below;
  return type_ == ValueType::float32 && scales_.factors.empty() && density() < kernels.floats_as_lists_below;
}

// Of int8, what pack_values has made of them.
void PackedRows::pack_lists(const SparseWeights& weights) {
  const bool of_bytes = type_ == ValueType::int8;
  for (std::int64_t first = 0; first < columns_; first += kSliceColumns) {
    Slice& slice = slices_.emplace_back();
    slice.first = first;
    slice.starts.reserve(index(rows_) + 1);
    slice.starts.push_back(0);
    if (columns_ <= kSliceColumns) {
      slice.columns.reserve(index(nnz_));
      of_bytes ? slice.bytes.reserve(index(nnz_)) : slice.values.reserve(index(nnz_));
    }
    for (std::int64_t row = 0; row < rows_; ++row) {
      const auto columns = weights.row_columns(row);
      const auto values = weights.row_values(row);
      for (std::size_t i = 0; i < columns.size(); ++i) {
        const std::int64_t column = std::int64_t{columns[i]} - first;
        if (column < 0 || column >= kSliceColumns) continue;
        slice.columns.push_back(static_cast<std::uint16_t>(column));
        if (of_bytes) {
          slice.bytes.push_back(static_cast<std::int8_t>(values_[starts_[index(row)] + i]));
        } else {
          slice.values.push_back(values[i]);
        }
      }
      slice.starts.push_back(static_cast<std::uint32_t>(slice.columns.size()));
    }
  }
}

void PackedRows::pack_values(const SparseWeights& weights) {
  const bool is_dense = nnz_ == rows_ * columns_ && columns_ % kWordColumns == 0;
  const bool quantizes = type_ == ValueType::int8 && scales_.factors.empty();
  const std::size_t size = bytes_of(type_);
  if (!is_dense) masks_.resize(index(rows_ * words_));
  if (quantizes) scales_.factors.resize(index(rows_));
  if (type_ == ValueType::int8) sums_.resize(index(rows_));
  values_.resize(index(nnz_) * size + kValuePadding);
  starts_.reserve(index(rows_) + 1);
  std::byte* to = values_.data();
  for (std::int64_t row = 0; row < rows_; ++row) {
    const auto columns = weights.row_columns(row);
    const auto values = weights.row_values(row);
    starts_.push_back(index(to - values_.data()));
    if (!is_dense) {
      std::uint64_t* const masks = masks_.data() + row * words_;
      for (const std::uint32_t column : columns) {
        masks[column / kWordColumns] |= std::uint64_t{1} << (column % kWordColumns);
      }
    }
    if (type_ != ValueType::int8) {
      for (const float value : values) {
        put(type_, value, to);
        to += size;
      }
      continue;
    }
    float unit = 1;
    if (quantizes) {
      float most = 0;
      for (const float value : values) most = std::max(most, std::abs(value));
      // A scale that is too small for its inverse to be a float is that of weights that are all but zero.
      unit = std::max(most / kMostInt8, 0x1p-126F);
      scales_.factors[index(row)] = unit;
    }
    std::int32_t sum = 0;
    for (const float value : values) {
      const std::int8_t number =
          quantizes ? static_cast<std::int8_t>(std::clamp(std::nearbyint(value / unit), -kMostInt8, kMostInt8))
                    : whole(value);
      *to++ = static_cast<std::byte>(number);
      sum += number;
    }
    sums_[index(row)] = sum;
  }
  starts_.push_back(index(to - values_.data()));
}

void PackedRows::use_windows(const SparseWeights& weights, double most_bytes) {
  const std::size_t own = masks_.size() * sizeof(masks_[0]) + index(nnz_) * bytes_of(type_);
  const auto most = static_cast<std::size_t>(most_bytes * static_cast<double>(own));
  windows_ = WindowedRows::pack(weights, type_, values_, most);
  if (is_windowed()) release_values();
}

// Sums stay: products of many rows are integers with any form.
void PackedRows::release_values() {
  decltype(masks_)().swap(masks_);
  decltype(values_)().swap(values_);
}

void PackedRows::cut(const SparseWeights& weights) {
  const std::size_t own = is_list() ? 1 : index(words_) * sizeof(std::uint64_t) / bytes_of(type_);
  const auto share = [&](std::int64_t row) { return static_cast<std::int64_t>(weights.row_values(row).size() + own); };
  std::int64_t all = 0;
  for (std::int64_t row = 0; row < rows_; ++row) all += share(row);
  chunks_.push_back(0);
  std::int64_t sum = 0;
  const std::int64_t together = std::max(kChunkRows, rows_together());
  for (std::int64_t row = 0; row < rows_; ++row) {
    sum += share(row);
    const auto cuts = static_cast<std::int64_t>(chunks_.size());
    if (cuts < kChunks && (row + 1) % together == 0 && sum * kChunks >= all * cuts) chunks_.push_back(row + 1);
  }
  if (chunks_.back() != rows_) chunks_.push_back(rows_);
}

std::int64_t PackedRows::nnz_of(std::int64_t begin, std::int64_t end) const {
  if (!is_list()) return static_cast<std::int64_t>((starts_[index(end)] - starts_[index(begin)]) / bytes_of(type_));
  std::int64_t sum = 0;
  for (const Slice& slice : slices_) sum += slice.starts[index(end)] - slice.starts[index(begin)];
  return sum;
}

const char* PackedRows::form() const {
  return is_list() ? "list" : is_windowed() ? "windows" : masks_.empty() ? "dense" : "bitmap";
}

std::int64_t PackedRows::bytes() const {
  std::size_t sum = masks_.capacity() * sizeof(masks_[0]) + values_.capacity() +
                    starts_.capacity() * sizeof(starts_[0]) + scales_.factors.capacity() * sizeof(float) +
                    sums_.capacity() * sizeof(sums_[0]) + chunks_.capacity() * sizeof(chunks_[0]);
  if (is_windowed()) sum += windows_->bytes();
  for (const Slice& slice : slices_) {
    sum += slice.starts.capacity() * sizeof(slice.starts[0]) + slice.columns.capacity() * sizeof(slice.columns[0]) +
           slice.values.capacity() * sizeof(slice.values[0]) + slice.bytes.capacity();
  }
  return static_cast<std::int64_t>(sum);
}

void PackedRows::describe(PackedRowsArgs& args) const {
  args.type = type_;
  args.masks = masks_.empty() ? nullptr : masks_.data();
  args.values = values_.data();
  args.starts = starts_.data();
  args.columns = columns_;
  args.words = words_;
  args.scales = scales_.factors.empty() ? nullptr : scales_.factors.data();
  args.group_columns = scales_.group_columns;
  args.groups = groups_;
  args.sums = sums_.data();
  if (is_windowed()) {
    args.windows = windows_->args();
    return;
  }
  const auto all_bytes = static_cast<double>(values_.size() - kValuePadding);
  const double word_bytes = all_bytes / static_cast<double>(rows_ * words_);
  args.word_values = word_bytes / static_cast<double>(bytes_of(type_));
  // More lines may be under way to Zen 4's second-level cache than to its first, and to Intel's where a word has more
  // than one. What was not asked for waits all the longer: some words have more values than the mean.
  const Microarchitecture own = detected_microarchitecture();
  args.into_level2 = own == Microarchitecture::zen4 || (own == Microarchitecture::intel && word_bytes > 96.0);
  const double more = args.into_level2 ? 0.5 : 0.0;
  args.lines_per_word = static_cast<std::int64_t>(std::ceil(word_bytes / 64.0 + more));
  args.lines_per_block =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(kLineWords) * word_bytes / 64.0 + more));
}

void PackedRows::describe(std::int64_t row, ListArgs& args) const {
  describe(row, static_cast<SomeRows&>(args));
  args.first_row = row;
  if (is_windowed()) args.windows = windows_->args();
}

void PackedRows::describe(std::int64_t row, SomeRows& args) const {
  args.type = type_;
  args.masks = masks_.empty() ? nullptr : masks_.data() + row * words_;
  args.columns = columns_;
  args.words = words_;
  args.values = values_.data();
  args.starts = starts_.data() + row;
  args.groups = groups_;
  args.scales = scales_.factors.empty() ? nullptr : scales_.factors.data() + row * groups_;
  args.group_columns = scales_.group_columns;
}

}  // namespace sift::cpu
