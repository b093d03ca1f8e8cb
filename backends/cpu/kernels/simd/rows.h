// The micro-kernels: sparse or dense rows of weights times a panel that lies in the first-level cache, accumulators in
// registers. A tile is Rows x Cols blocks; its rows are `pitch` bytes apart in the panel.
#pragma once

#include "simd/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// Calls use(v, operand) for every vector of the tile at `base`; each operand is read once.
template <int Rows, int Cols, typename Use>
[[gnu::always_inline]] inline void for_each_vec(const std::byte* base, std::ptrdiff_t pitch, Use use) {
  constexpr int kVecsPerRow = Cols * kVecsPerBlock;
#pragma GCC unroll 2
  for (int row = 0; row < Rows; ++row) {
    const std::byte* const from = own_register(base + row * pitch);
#pragma GCC unroll 32
    for (int v = 0; v < kVecsPerRow; ++v) use(row * kVecsPerRow + v, load(from + v * kVecBytes));
  }
}

template <int Rows, int Cols>
struct Tile {
  static constexpr int kVecsPerRow = Cols * kVecsPerBlock;
  static constexpr int kVecs = Rows * kVecsPerRow;
  static constexpr int kFloats = kVecs * kVecLanes;
  using V = Vec;

  Vec vec[kVecs];

  [[gnu::always_inline]] void load_from(const float* at) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) vec[v] = load(at + v * kVecLanes);
  }
  [[gnu::always_inline]] void fill(float value) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) vec[v] = splat(value);
  }
  [[gnu::always_inline]] void store_to(float* at) const {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) store(at + v * kVecLanes, vec[v]);
  }
  [[gnu::always_inline]] void clear() { fill(0.0F); }
  [[gnu::always_inline]] void start(const float* bias, std::uint32_t row, const float* at) {
    if (bias != nullptr) {
      fill(bias[row]);
    } else {
      load_from(at);
    }
  }
  // What `start` would have begun with.
  [[gnu::always_inline]] void add(const float* bias, std::uint32_t row, const float* at) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) vec[v] += bias != nullptr ? splat(bias[row]) : load(at + v * kVecLanes);
  }
  [[gnu::always_inline]] void multiply_add(Vec weight, const std::byte* operands, std::ptrdiff_t pitch) {
    for_each_vec<Rows, Cols>(operands, pitch, [&](int v, Vec x) { vec[v] += weight * x; });
  }
  [[gnu::always_inline]] void multiply_add(float weight, const std::byte* operands, std::ptrdiff_t pitch) {
    multiply_add(splat(weight), operands, pitch);
  }
  // `row` counts from the one that acc and the direct output begin at.
  [[gnu::always_inline]] void finish(const RowsArgs& args, std::size_t row) {
    const DirectOutput& direct = args.direct;
    if (direct.out == nullptr) return store_to(args.acc + row * kVecs * kVecLanes);
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * direct.row_stride;
    if (direct.residual != nullptr) {
      for_each_place(direct.residual + at, direct, [&](int v, const float* from) { vec[v] += load_unaligned(from); });
    }
    const Vec low = splat(direct.low);
    const Vec high = splat(direct.high);
    if (direct.non_temporal) {
      for_each_place(direct.out + at, direct,
                     [&](int v, float* to) { store_non_temporal(to, min(max(vec[v], low), high)); });
    } else {
      for_each_place(direct.out + at, direct,
                     [&](int v, float* to) { store_unaligned(to, min(max(vec[v], low), high)); });
    }
  }

 private:
  template <typename Float, typename Use>
  [[gnu::always_inline]] static void for_each_place(Float* at, const DirectOutput& direct, Use use) {
#pragma GCC unroll 2
    for (int row = 0; row < Rows; ++row, at += direct.pitch) {
      Float* block = at;
#pragma GCC unroll 16
      for (int col = 0; col < Cols; ++col, block += direct.step) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecsPerBlock; ++v) {
          use((row * Cols + col) * kVecsPerBlock + v, block + v * kVecLanes);
        }
      }
    }
  }
};

template <typename Sums>
void rows_csr(const RowsArgs& args) {
  const std::byte* const panel = args.panel;
  const std::ptrdiff_t pitch = args.pitch;
  const std::uint16_t* offset = args.offsets + args.starts[args.row_begin];
  const float* value = args.values + args.starts[args.row_begin];
  float* acc = args.acc;
  for (std::uint32_t row = args.row_begin; row < args.row_end; ++row, acc += Sums::kFloats) {
    const std::uint16_t* const end = args.offsets + args.starts[row + 1];
    Sums sums;
    sums.start(args.bias, row, acc);
#pragma GCC unroll 1
    for (; offset != end; ++offset, ++value) sums.multiply_add(*value, panel + *offset, pitch);
    sums.finish(args, row - args.row_begin);
  }
}

// A few weights of a row at a time, each with sums of its own, where the sums of one are too few to keep the
// multipliers busy: a sum takes its next multiply-add when the one before is done.
template <typename Sums, int Together>
void rows_csr_apart(const RowsArgs& args) {
  const std::byte* const panel = args.panel;
  const std::ptrdiff_t pitch = args.pitch;
  const std::uint16_t* offset = args.offsets + args.starts[args.row_begin];
  const float* value = args.values + args.starts[args.row_begin];
  float* acc = args.acc;
  for (std::uint32_t row = args.row_begin; row < args.row_end; ++row, acc += Sums::kFloats) {
    const std::uint16_t* const end = args.offsets + args.starts[row + 1];
    Sums sums[Together];
    sums[0].start(args.bias, row, acc);
#pragma GCC unroll 8
    for (int i = 1; i < Together; ++i) sums[i].clear();
#pragma GCC unroll 1
    for (; end - offset >= Together; offset += Together, value += Together) {
#pragma GCC unroll 8
      for (int i = 0; i < Together; ++i) sums[i].multiply_add(value[i], panel + offset[i], pitch);
    }
#pragma GCC unroll 1
    for (; offset != end; ++offset, ++value) sums[0].multiply_add(*value, panel + *offset, pitch);
#pragma GCC unroll 8
    for (int i = 1; i < Together; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < Sums::kVecs; ++v) sums[0].vec[v] += sums[i].vec[v];
    }
    sums[0].finish(args, row - args.row_begin);
  }
}

// sums[r] += the r-th weight times its operands.
template <int Row, int RowsPerCall, typename Sums>
[[gnu::always_inline]] inline void multiply_sell(const SomeWeights<Sums, RowsPerCall>& weights, const std::byte* panel,
                                                 const std::uint16_t* offsets, std::ptrdiff_t pitch, Sums* sums) {
  if constexpr (Row < RowsPerCall) {
    sums[Row].multiply_add(weights.template splat<Row>(), panel + offsets[Row], pitch);
    multiply_sell<Row + 1, RowsPerCall>(weights, panel, offsets, pitch, sums);
  }
}

// Weights are read once per tile, from memory if they are many: what processors prefetch by themselves ends with each
// page.
inline constexpr int kListAhead = 2048;

// In steps of whole lines of both lists: an end that is guessed wrong takes longer than a few lines too many.
[[gnu::always_inline]] inline void prefetch_lists(const float* values, const std::uint16_t* offsets,
                                                  std::ptrdiff_t count) {
  constexpr int kStep = 64;
  constexpr int kLine = 64;
#pragma GCC unroll 1
  for (std::ptrdiff_t i = kListAhead; i < kListAhead + count; i += kStep) {
#pragma GCC unroll 4
    for (int at = 0; at < kStep; at += kLine / sizeof(float)) __builtin_prefetch(values + i + at, 0, 2);
#pragma GCC unroll 2
    for (int at = 0; at < kStep; at += kLine / sizeof(std::uint16_t)) __builtin_prefetch(offsets + i + at, 0, 2);
  }
}

// Two or four rows at a time, where the sums of one are too few to keep the multipliers busy. Rows stand by the lengths
// of their lists, so that few weights of zero make those of neighbours equal: there is one end for all of them, and
// most are what the processor expects.
template <typename Sums, int RowsPerCall>
void rows_sell(const RowsArgs& args) {
  const std::byte* const panel = args.panel;
  const std::ptrdiff_t pitch = args.pitch;
  const std::uint32_t* ends = args.starts + args.row_begin / RowsPerCall;
  const std::uint16_t* offset = args.offsets + *ends;
  const float* value = args.values + *ends;
  const std::uint16_t* const last_rows = args.order + args.row_end;
  for (const std::uint16_t* rows = args.order + args.row_begin; rows != last_rows; rows += RowsPerCall) {
    Sums sums[RowsPerCall];
#pragma GCC unroll 4
    for (int r = 0; r < RowsPerCall; ++r) {
      sums[r].clear();
    }
    const std::uint16_t* const end = args.offsets + *++ends;
    prefetch_lists(value, offset, end - offset);
#pragma GCC unroll 1
    for (; offset != end; offset += RowsPerCall, value += RowsPerCall) {
      const SomeWeights<Sums, RowsPerCall> weights(value);
      multiply_sell<0>(weights, panel, offset, pitch, sums);
    }
#pragma GCC unroll 4
    for (int r = 0; r < RowsPerCall; ++r) {
      sums[r].add(args.bias, rows[r], args.acc + rows[r] * std::size_t{Sums::kFloats});
      sums[r].finish(args, rows[r]);
    }
  }
}

// Two rows at a time: an operand that both rows use is read once. Pays from a density of about 20 %, where the
// single list has reached the rate at which the processor can load operands.
template <int Rows, int Cols>
void rows_csr_pairs(const RowsArgs& args) {
  using Sums = Tile<Rows, Cols>;
  const std::byte* const panel = args.panel;
  const std::ptrdiff_t pitch = args.pitch;
  float* acc = args.acc;
  for (std::uint32_t row = args.row_begin; row < args.row_end; row += 2, acc += 2 * Sums::kVecs * kVecLanes) {
    float* const second_acc = acc + Sums::kVecs * kVecLanes;
    const std::uint32_t* const starts = args.starts + row / 2 * 3;
    const std::uint16_t* offset = args.offsets + starts[0];
    const float* value = args.values + args.value_starts[row / 2];
    Sums first;
    Sums second;
    first.start(args.bias, row, acc);
    second.start(args.bias, row + 1, second_acc);
    const std::uint16_t* end = args.offsets + starts[1];
#pragma GCC unroll 1
    for (; offset != end; ++offset, value += 2) {
      const Vec first_weight = splat(value[0]);
      const Vec second_weight = splat(value[1]);
      for_each_vec<Rows, Cols>(panel + *offset, pitch, [&](int v, Vec x) {
        first.vec[v] += first_weight * x;
        second.vec[v] += second_weight * x;
      });
    }
    end = args.offsets + starts[2];
#pragma GCC unroll 1
    for (; offset != end; ++offset, ++value) {
      const Vec weight = splat(*value);
      for_each_vec<Rows, Cols>(panel + *offset, pitch, [&](int v, Vec x) { first.vec[v] += weight * x; });
    }
    first.finish(args, row - args.row_begin);
    end = args.offsets + starts[3];
#pragma GCC unroll 1
    for (; offset != end; ++offset, ++value) {
      const Vec weight = splat(*value);
      for_each_vec<Rows, Cols>(panel + *offset, pitch, [&](int v, Vec x) { second.vec[v] += weight * x; });
    }
    second.finish(args, row + 1 - args.row_begin);
  }
}

// Many dense weights come from memory, and what processors prefetch by themselves ends with each page.
inline constexpr int kDenseAhead = 4096 / sizeof(float);
// Columns whose weights, four each, are a cache line.
inline constexpr std::uint32_t kDenseColumns = 4;

// sums[r] += the r-th weight of each column times its operands. Of one tap, operands follow one another, and need
// no list of where they are.
template <int Rows, int Cols, int RowsPerCall, bool OneTap>
[[gnu::always_inline]] inline void multiply_dense(const RowsArgs& args, const float* value, Tile<Rows, Cols>* sums) {
  constexpr std::ptrdiff_t kColumnBytes = Rows * Cols * kBlock * sizeof(float);
  const std::byte* at = args.panel;
  const std::uint16_t* offset = args.offsets;
  const auto multiply = [&](std::uint32_t column) {
    const float* const weights = value + 4 * column;
    const auto use = [&](int v, Vec x) {
#pragma GCC unroll 4
      for (int r = 0; r < RowsPerCall; ++r) sums[r].vec[v] += splat(weights[r]) * x;
    };
    if constexpr (OneTap) {
#pragma GCC unroll 32
      for (int v = 0; v < Tile<Rows, Cols>::kVecs; ++v) use(v, load(at + column * kColumnBytes + v * kVecBytes));
    } else {
      for_each_vec<Rows, Cols>(args.panel + offset[column], args.pitch, use);
    }
  };
  std::uint32_t left = args.columns;
#pragma GCC unroll 1
  for (; left >= kDenseColumns; left -= kDenseColumns) {
    __builtin_prefetch(value + kDenseAhead, 0, 2);
#pragma GCC unroll 4
    for (std::uint32_t column = 0; column < kDenseColumns; ++column) multiply(column);
    value += 4 * kDenseColumns;
    at += kDenseColumns * kColumnBytes;
    offset += kDenseColumns;
  }
#pragma GCC unroll 1
  for (std::uint32_t column = 0; column < left; ++column) multiply(column);
}

// `RowsPerCall` rows of dense weights share each operand. The weights come in groups of four rows, column by column.
template <int Rows, int Cols, int RowsPerCall>
void rows_dense(const RowsArgs& args) {
  using Sums = Tile<Rows, Cols>;
  float* acc = args.acc;
  for (std::uint32_t row = args.row_begin; row < args.row_end; row += RowsPerCall) {
    const float* const value = args.values + static_cast<std::size_t>(row / 4) * args.columns * 4 + row % 4;
    Sums sums[RowsPerCall];
#pragma GCC unroll 4
    for (int r = 0; r < RowsPerCall; ++r) {
      sums[r].start(args.bias, row + static_cast<std::uint32_t>(r), acc + r * Sums::kVecs * kVecLanes);
    }
    if (args.one_tap && Rows == 1) {
      multiply_dense<Rows, Cols, RowsPerCall, true>(args, value, sums);
    } else {
      multiply_dense<Rows, Cols, RowsPerCall, false>(args, value, sums);
    }
#pragma GCC unroll 4
    for (int r = 0; r < RowsPerCall; ++r) {
      sums[r].finish(args, row + static_cast<std::uint32_t>(r) - args.row_begin);
      acc += Sums::kVecs * kVecLanes;
    }
  }
}

// Registers left for accumulators in addition to weights and, where arithmetic takes no memory operand, operands.
inline constexpr int kAccumulators = kRegisters - (kMemoryOperands ? 2 : 4);

// Sums that hide the latency of the multiply-adds by themselves; rows of fewer use sell, or have several.
inline constexpr int kEnoughSums = 7;

template <int Rows, int Cols>
constexpr RowsFunction rows_of(WeightForm form) {
  constexpr int kVecs = Tile<Rows, Cols>::kVecs;
  if constexpr (Rows * Cols <= 14 && kVecs >= kEnoughSums && kVecs <= kAccumulators) {
    if (form == WeightForm::csr) return &rows_csr<Tile<Rows, Cols>>;
  }
  if constexpr (Rows == 1 && kVecs < kEnoughSums && 2 * kVecs <= kAccumulators) {
    constexpr int kTimes = (kEnoughSums + kVecs) / kVecs;  // as many as are enough
    constexpr int kTogether = kTimes > 4 ? 4 : kTimes;
    if (form == WeightForm::csr) return &rows_csr_apart<Tile<Rows, Cols>, kTogether>;
  }
  if constexpr (2 * kVecs <= kRegisters - 3) {
    if (form == WeightForm::csr_pairs) return &rows_csr_pairs<Rows, Cols>;
    if constexpr (4 * kVecs <= kRegisters - 3) {
      if (form == WeightForm::dense) return &rows_dense<Rows, Cols, 4>;
    } else {
      if (form == WeightForm::dense) return &rows_dense<Rows, Cols, 2>;
    }
  }
  return nullptr;
}

// Four or two rows, as the registers hold their sums.
template <typename Sums>
constexpr SellRows sell_rows_of() {
  if constexpr (4 * Sums::kVecs <= kAccumulators) {
    return {&rows_sell<Sums, 4>, 4};
  } else if constexpr (2 * Sums::kVecs <= kAccumulators) {
    return {&rows_sell<Sums, 2>, 2};
  } else {
    return {};
  }
}

template <int Rows, int Cols = 1>
SellRows find_sell_rows_of_width(int columns) {
  if constexpr (Tile<Rows, Cols>::kVecs < kEnoughSums) {
    if (columns == Cols) return sell_rows_of<Tile<Rows, Cols>>();
    return find_sell_rows_of_width<Rows, Cols + 1>(columns);
  } else {
    return {};
  }
}

inline SellRows find_sell_rows(int rows, int columns) {
  if (rows == 1) return find_sell_rows_of_width<1>(columns);
  if (rows == 2) return find_sell_rows_of_width<2>(columns);
  return {};
}

template <int Rows, int Last, int Cols = 1>
RowsFunction find_rows_of_width(WeightForm form, int columns) {
  if (columns == Cols) return rows_of<Rows, Cols>(form);
  if constexpr (Cols < Last) {
    return find_rows_of_width<Rows, Last, Cols + 1>(form, columns);
  } else {
    return nullptr;
  }
}

inline RowsFunction find_rows(WeightForm form, int rows, int columns) {
  if (rows == 1) return find_rows_of_width<1, 14>(form, columns);
  if (rows == 2) return find_rows_of_width<2, 7>(form, columns);
  return nullptr;
}

}  // namespace sift::cpu::SIFT_ISA
