#include "weights/pack_lists.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

namespace sift::cpu {
namespace {

constexpr std::int64_t kRowsAtOnce = 32;  // of csr
// Memory is reserved for what is expected, and for a share more: of csr a little, of sell for padding.
constexpr double kSpareOfCsr = 1.0 / 32;
constexpr double kSpareOfSell = 1.0 / 8;
constexpr std::size_t kMostUnused = 16;  // lists that leave a sixteenth of their memory unused are moved

// Slices, to which rows are added in order.
class ListPacking {
 public:
  // `offsets` are those of the columns of the first slice, and `behind` is where its panel ends. `nnz` are expected.
  ListPacking(std::int64_t channels, std::int64_t taps, std::span<const std::uint16_t> offsets, std::uint16_t behind,
              const Tiling& tiling, double nnz)
      : is_sell_(tiling.form == WeightForm::sell),
        chunk_(is_sell_ ? static_cast<std::size_t>(tiling.rows_per_call) : 1),
        offsets_(offsets),
        behind_(behind) {
    const std::int64_t slice_channels = std::min(tiling.slice_channels, channels);
    for (std::int64_t first = 0; first < channels; first += slice_channels) {
      PackedSlice& slice = slices_.emplace_back();
      slice.first_channel = first;
      slice.channels = std::min(slice_channels, channels - first);
      slice.starts.push_back(0);
      column_ends_.push_back(static_cast<std::uint32_t>((first + slice.channels) * taps));
      const double share = static_cast<double>(slice.channels) / static_cast<double>(channels);
      const double spare = is_sell_ ? kSpareOfSell : kSpareOfCsr;
      const auto expected = static_cast<std::size_t>(nnz * share * (1 + spare)) + kOffsetSlack;
      slice.offsets.reserve(expected);
      slice.values.reserve(expected);
    }
  }

  // For sell, a band.
  void add(std::span<const WeightRow> rows) {
    if (is_sell_) return add_band(rows);
    for (const WeightRow& row : rows) add_row(row);
  }

  // As they are: each slice has room for more entries than it has.
  std::vector<PackedSlice> take_part() { return std::move(slices_); }

  std::vector<PackedSlice> take() {
    for (PackedSlice& slice : slices_) {
      slice.offsets.resize(slice.starts.back());
      slice.offsets.resize(slice.starts.back() + kOffsetSlack, is_sell_ ? behind_ : 0);
      slice.values.resize(slice.starts.back());
      // There were fewer than expected, or memory has been doubled.
      if (slice.values.capacity() > slice.values.size() + slice.values.size() / kMostUnused) {
        slice.offsets.shrink_to_fit();
        slice.values.shrink_to_fit();
      }
    }
    return std::move(slices_);
  }

 private:
  std::uint32_t first_column(std::size_t slice) const { return slice == 0 ? 0 : column_ends_[slice - 1]; }

  // In each slice, one list after the other.
  void add_row(const WeightRow& row) {
    const std::uint32_t* const columns = row.columns.data();
    const float* const values = row.values.data();
    const std::size_t count = row.columns.size();
    std::size_t i = 0;
    for (std::size_t number = 0; number < slices_.size(); ++number) {
      PackedSlice& slice = slices_[number];
      std::size_t at = slice.starts.back();
      if (const std::size_t most = at + count - i; most > slice.values.size()) {
        slice.offsets.resize(most > slice.offsets.capacity() ? 2 * most : slice.offsets.capacity());
        slice.values.resize(slice.offsets.size());
      }
      const std::uint32_t first = first_column(number);
      const std::uint32_t end = column_ends_[number];
      const std::uint16_t* const offsets = offsets_.data();
      std::uint16_t* const slice_offsets = slice.offsets.data();
      float* const slice_values = slice.values.data();
      for (; i < count && columns[i] < end; ++i, ++at) {
        slice_offsets[at] = offsets[columns[i] - first];
        slice_values[at] = values[i];
      }
      slice.starts.push_back(static_cast<std::uint32_t>(at));
    }
  }

  // In each slice, lists are ordered by their lengths, and a few neighbours have their entries in turn. Shorter lists
  // are padded with zero times what follows the panel, which is zero too: times anything else it might be NaN.
  void add_band(std::span<const WeightRow> rows) {
    ends_.clear();
    for (const WeightRow& row : rows) {
      std::size_t i = 0;
      for (const std::uint32_t end : column_ends_) {
        while (i < row.columns.size() && row.columns[i] < end) ++i;
        ends_.push_back(static_cast<std::uint32_t>(i));
      }
    }
    firsts_.resize(ends_.size());
    for (std::size_t slice = 0; slice < slices_.size(); ++slice) place(slice, rows.size());
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const std::uint32_t* const columns = rows[row].columns.data();
      const float* const values = rows[row].values.data();
      const std::uint16_t* const offsets = offsets_.data();
      const std::size_t step = chunk_;
      std::size_t i = 0;
      for (std::size_t slice = 0; slice < slices_.size(); ++slice) {
        const std::size_t cell = row * slices_.size() + slice;
        const std::size_t end = ends_[cell];
        const std::uint32_t first = first_column(slice);
        std::uint16_t* to_offset = slices_[slice].offsets.data() + firsts_[cell];
        float* to_value = slices_[slice].values.data() + firsts_[cell];
        for (; i < end; ++i, to_offset += step, to_value += step) {
          *to_offset = offsets[columns[i] - first];
          *to_value = values[i];
        }
      }
    }
  }

  // Finds where the first entry of each row of a band lies in a slice, and makes room.
  void place(std::size_t slice, std::size_t rows) {
    std::vector<std::uint32_t>& starts = slices_[slice].starts;
    std::vector<std::uint16_t>& order = slices_[slice].order;
    order.resize(order.size() + rows);
    const auto band = std::span(order).last(rows);
    std::iota(band.begin(), band.end(), std::uint16_t{0});
    // Stable: padding rows, which are not stored, stay last.
    std::ranges::stable_sort(band, std::ranges::greater{}, [&](std::uint16_t row) { return count(row, slice); });
    for (std::size_t place = 0; place < rows; ++place) {
      // Of a few neighbours the first has the longest list.
      if (place % chunk_ == 0) {
        starts.push_back(starts.back() + count(band[place], slice) * static_cast<std::uint32_t>(chunk_));
      }
      firsts_[band[place] * slices_.size() + slice] = starts.end()[-2] + static_cast<std::uint32_t>(place % chunk_);
    }
    slices_[slice].offsets.resize(starts.back(), behind_);
    slices_[slice].values.resize(starts.back(), 0.0F);
  }

  // Entries of a row of the band in a slice.
  std::uint32_t count(std::size_t row, std::size_t slice) const {
    const std::uint32_t* const ends = ends_.data() + row * slices_.size();
    return slice == 0 ? ends[0] : ends[slice] - ends[slice - 1];
  }

  bool is_sell_;
  std::size_t chunk_;  // of lists that have their entries in turn
  std::span<const std::uint16_t> offsets_;
  std::uint16_t behind_;
  std::vector<PackedSlice> slices_;
  std::vector<std::uint32_t> column_ends_;  // of slices
  // Of a band, [rows][slices].
  std::vector<std::uint32_t> ends_;    // of entries in a slice, counted in the row
  std::vector<std::uint32_t> firsts_;  // places of first entries in a slice
};

// Slices of all rows out of those of some rows each; `filler` is what follows a slice's offsets.
std::vector<PackedSlice> join(std::vector<std::vector<PackedSlice>> parts, std::uint16_t filler, ThreadPool& pool) {
  std::vector<PackedSlice> joined(parts.front().size());
  for (std::size_t number = 0; number < joined.size(); ++number) {
    PackedSlice& all = joined[number];
    all.first_channel = parts.front()[number].first_channel;
    all.channels = parts.front()[number].channels;
    all.starts.push_back(0);
    std::vector<std::size_t> begins;
    for (const std::vector<PackedSlice>& part : parts) {
      const PackedSlice& own = part[number];
      const std::uint32_t begin = all.starts.back();
      begins.push_back(begin);
      for (const std::uint32_t start : std::span(own.starts).subspan(1)) all.starts.push_back(begin + start);
      all.order.insert(all.order.end(), own.order.begin(), own.order.end());
    }
    const std::size_t entries = all.starts.back();
    all.offsets.resize(entries);
    all.offsets.resize(entries + kOffsetSlack, filler);
    all.values.resize(entries);
    pool.parallel_for(std::ssize(parts), [&](std::int64_t index) {
      const auto part = static_cast<std::size_t>(index);
      PackedSlice& own = parts[part][number];
      const auto count = static_cast<std::ptrdiff_t>(own.starts.back());
      const auto begin = static_cast<std::ptrdiff_t>(begins[part]);
      std::copy_n(own.offsets.begin(), count, all.offsets.begin() + begin);
      std::copy_n(own.values.begin(), count, all.values.begin() + begin);
      own = {};
    });
  }
  return joined;
}

}  // namespace

std::vector<PackedSlice> pack_lists(RowSource& source, const std::function<std::unique_ptr<RowSource>()>& make_source,
                                    std::int64_t first_row, std::int64_t rows, const ConvGeometry& geometry,
                                    const PanelShape& panel, const Tiling& tiling, std::int64_t band_rows,
                                    ThreadPool* pool) {
  constexpr double kLeastPart = 8192;  // weights: fewer take less time than a thread does to begin
  const std::int64_t taps = geometry.kernel_h * geometry.kernel_w;
  const std::int64_t channels = source.columns() / taps;
  const std::int64_t slice_channels = std::min(tiling.slice_channels, channels);
  const auto behind = static_cast<std::uint16_t>(panel.floats(slice_channels) * std::int64_t{sizeof(float)});
  const std::vector<std::uint16_t> offsets = column_offsets(geometry, panel, slice_channels);
  const bool is_sell = tiling.form == WeightForm::sell;
  const std::int64_t at_once = is_sell ? band_rows : kRowsAtOnce;
  const std::int64_t padded = padded_rows(rows);
  const std::int64_t steps = ceil_div(padded, at_once);
  const double row_nnz = source.row_nnz();
  const auto pack = [&](RowSource& from, std::int64_t begin_step, std::int64_t end_step) {
    const std::int64_t end = std::min(end_step * at_once, padded);
    const double nnz =
        row_nnz * static_cast<double>(std::max<std::int64_t>(std::min(end, rows) - begin_step * at_once, 0));
    ListPacking packing(channels, taps, offsets, behind, tiling, nnz);
    std::vector<WeightRow> some;
    for (std::int64_t first = begin_step * at_once; first < end; first += at_once) {
      const std::int64_t count = std::min(at_once, padded - first);
      const auto read = from.read(first_row + first, std::clamp<std::int64_t>(rows - first, 0, count));
      some.assign(read.begin(), read.end());
      some.resize(static_cast<std::size_t>(count));
      packing.add(some);
    }
    return packing;
  };
  const auto worth = static_cast<std::int64_t>(row_nnz * static_cast<double>(rows) / kLeastPart);
  const std::int64_t parts =
      pool == nullptr ? 1 : std::max<std::int64_t>(std::min({std::int64_t{pool->threads()}, steps, worth}), 1);
  if (parts == 1) return pack(source, 0, steps).take();
  std::vector<std::vector<PackedSlice>> packed(static_cast<std::size_t>(parts));
  pool->parallel_for(parts, [&](std::int64_t part) {
    const std::unique_ptr<RowSource> own = part == 0 ? nullptr : make_source();
    RowSource& from = part == 0 ? source : *own;
    packed[static_cast<std::size_t>(part)] = pack(from, steps * part / parts, steps * (part + 1) / parts).take_part();
  });
  return join(std::move(packed), is_sell ? behind : 0, *pool);
}

}  // namespace sift::cpu
