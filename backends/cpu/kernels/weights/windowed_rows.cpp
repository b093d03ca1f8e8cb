#include "weights/windowed_rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace sift::cpu {
namespace {

constexpr auto kLaneCount = static_cast<std::size_t>(kWindowRows);

// Where the windows of a block begin, and which weights each lane takes in them.
//
// A window begins at the first of the lanes' next columns. No lane could take more of its weights earlier, so that
// there are no fewer stops.
class BlockWindows {
 public:
  explicit BlockWindows(ValueType type) : steps_(static_cast<std::size_t>(steps_of(type))) {}

  // Lists the columns of a block of rows of `weights`, which stay as they are.
  void begin(const SparseWeights& weights, std::int64_t first_row) {
    const std::int64_t words = (weights.columns() + kWindowColumns - 1) / kWindowColumns;
    last_base_ = static_cast<std::uint32_t>((words - 1) * kWindowColumns);
    columns_.clear();
    std::array<std::size_t, kLaneCount> starts{};
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
      starts[lane] = columns_.size();
      const std::int64_t row = first_row + static_cast<std::int64_t>(lane);
      if (row < weights.rows()) {
        const auto own = weights.row_columns(row);
        columns_.insert(columns_.end(), own.begin(), own.end());
      }
      columns_.push_back(kNone);
    }
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) first_[lane] = columns_.data() + starts[lane];
  }

  // Calls stop(columns moved), and then for each step and lane put(step, lane, number of the row's next weight, its
  // column in the window, whether it is taken): if not, there may be no such weight.
  template <typename Stop, typename Put>
  void for_each(Stop stop, Put put) const {
    std::array<const std::uint32_t*, kLaneCount> next = first_;
    std::uint32_t base = 0;
    for (;;) {
      std::uint32_t least = kNone;
      for (const std::uint32_t* const own : next) least = std::min(least, *own);
      if (least == kNone) return;
      constexpr auto kMove = static_cast<std::uint32_t>(kMoveColumns);
      constexpr auto kMost = static_cast<std::uint32_t>(kMostMoved);
      const std::uint32_t to = std::max(base, std::min(least / kMove * kMove, last_base_));
      for (; to - base > kMost; base += kMost) stop(kMostMoved);
      stop(std::int64_t{to - base});
      base = to;
      for (std::size_t step = 0; step < steps_; ++step) {
        for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
          const std::uint32_t column = *next[lane] - base;
          const bool taken = column < kWindowColumns;
          put(step, lane, static_cast<std::size_t>(next[lane] - first_[lane]), column, taken);
          next[lane] += static_cast<std::size_t>(taken);
        }
      }
    }
  }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  std::size_t steps_;
  std::uint32_t last_base_ = 0;
  std::vector<std::uint32_t> columns_;  // of each lane, and kNone behind them
  std::array<const std::uint32_t*, kLaneCount> first_{};
};

}  // namespace

std::optional<WindowedRows> WindowedRows::pack(const SparseWeights& weights, ValueType type,
                                               std::span<const std::byte> values, std::size_t most) {
  const auto own = static_cast<std::size_t>(stop_bytes(type));
  const auto takes_more = [&](std::size_t stops) { return stops * (own + 1) > most; };
  if (takes_more(static_cast<std::size_t>(weights.nnz() / stop_weights(type)))) return std::nullopt;
  WindowedRows packed;
  packed.type_ = type;
  BlockWindows block(type);
  std::size_t stops = 0;
  for (std::int64_t row = 0; row < weights.rows(); row += kWindowRows) {
    packed.starts_.push_back(stops);
    block.begin(weights, row);
    block.for_each([&](std::int64_t) { ++stops; }, [](auto...) {});
    if (takes_more(stops)) return std::nullopt;
  }
  packed.starts_.push_back(stops);
  packed.stops_.resize(stops * own);
  packed.moves_.reserve(stops + 1);
  switch (bytes_of(type)) {
    case 4: packed.fill<std::uint32_t>(weights, values.data()); break;
    case 2: packed.fill<std::uint16_t>(weights, values.data()); break;
    default: packed.fill<std::uint8_t>(weights, values.data());
  }
  packed.moves_.push_back(0);  // kernels read one stop ahead
  return packed;
}

template <typename Value>
void WindowedRows::fill(const SparseWeights& weights, const std::byte* values) {
  const auto own = static_cast<std::size_t>(stop_bytes(type_));
  BlockWindows block(type_);
  const std::int64_t weights_of_stop = stop_weights(type_);
  std::byte* at = nullptr;
  std::array<const std::byte*, kLaneCount> lane_values{};
  for (std::int64_t row = 0; row < weights.rows(); row += kWindowRows) {
    lane_values.fill(values);
    for (std::int64_t lane = 0; lane < std::min(kWindowRows, weights.rows() - row); ++lane) {
      lane_values[static_cast<std::size_t>(lane)] = values;
      values += weights.row_columns(row + lane).size() * sizeof(Value);
    }
    const auto stop = [&](std::int64_t moved) {
      at = stops_.data() + moves_.size() * own;
      moves_.push_back(static_cast<std::uint8_t>(moved / kMoveColumns));
      std::fill_n(at, weights_of_stop, std::byte{kNoWeight});
      std::fill_n(at + weights_of_stop, static_cast<std::int64_t>(own) - weights_of_stop, std::byte{0});
    };
    const auto put = [&](std::size_t step, std::size_t lane, std::size_t number, std::uint32_t column, bool taken) {
      const auto to =
          static_cast<std::size_t>(stop_index(type_, static_cast<std::int64_t>(step), static_cast<std::int64_t>(lane)));
      at[to] = std::byte{taken ? window_place(column) : kNoWeight};
      // Read in any case, so that there is no branch: behind the last value there are others, or padding.
      Value value{};
      std::memcpy(&value, lane_values[lane] + number * sizeof value, sizeof value);
      value = taken ? value : Value{0};
      std::memcpy(at + weights_of_stop + to * sizeof value, &value, sizeof value);
    };
    block.begin(weights, row);
    block.for_each(stop, put);
  }
}

std::size_t WindowedRows::bytes() const {
  return stops_.capacity() + moves_.capacity() + starts_.capacity() * sizeof(starts_[0]);
}

}  // namespace sift::cpu
