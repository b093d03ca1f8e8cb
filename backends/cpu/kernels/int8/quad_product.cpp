#include "int8/quad_product.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/cache.h"
#include "base/microarchitecture.h"
#include "base/prefetcher.h"
#include "base/thread_pool.h"
#include "int8/positions.h"
#include "int8/shared_taps.h"
#include "jit/generated_rows.h"
#include "weights/pack_code.h"

namespace sift::cpu {
namespace {

// Blocks whose sums are made by one call: as many as make reading the weights again worth little, and more where their
// operands still stay in the second-level cache.
constexpr std::int64_t kMostBlocks = 16;
constexpr std::int64_t kMostSmallBlocks = 48;
constexpr std::int64_t kTileBytes = 128 << 10;
// Columns of lists side by side have 16 bits.
constexpr std::int64_t kMostSellColumns = 1 << 16;

struct Scratch {
  AlignedBuffer taps;
  AlignedBuffer operands;
  AlignedBuffer sums;
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

std::uint8_t* byte_buffer(AlignedBuffer& buffer, std::int64_t bytes) {
  return reinterpret_cast<std::uint8_t*>(buffer.floats(static_cast<std::size_t>(bytes) / sizeof(float)));
}

// Who multiplies what: tiles of blocks, and chunks of the groups of rows.
struct Sharing {
  std::int64_t tiles;
  std::int64_t chunks;

  Sharing(std::int64_t blocks, std::int64_t operand_bytes, std::int64_t groups, std::int64_t threads, bool copies)
      : tiles(ceil_div(blocks, std::clamp(kTileBytes / operand_bytes, kMostBlocks, kMostSmallBlocks))), chunks(1) {
    // Where there are few blocks, threads share the rows: each reads only its part of the weights.
    constexpr std::int64_t kTasksPerThread = 2;
    // Operands that are copied would come from another core then. The code of few rows is the lesser part beside those
    // of some blocks, if threads have about as many of these.
    constexpr std::int64_t kLeastCopied = 4;
    constexpr double kMostIdle = 0.1;
    const std::int64_t most = ceil_div(blocks, threads);
    const bool is_even = static_cast<double>(blocks) >= (1 - kMostIdle) * static_cast<double>(most * threads);
    if (blocks < threads * kMostBlocks / 2 && !(copies && is_even && most >= kLeastCopied)) {
      chunks = std::min(groups, ceil_div(threads == 1 ? 1 : threads * kTasksPerThread, tiles));
    } else {
      tiles = ceil_div(tiles, threads) * threads;
    }
  }
};

// Whether weights had best be loaded in fours. Their code is longer: layers of many weights, which mostly have few
// positions, would read it from beyond the second-level cache.
bool suits_fours(const QuadWeights& weights) {
  constexpr std::int64_t kBytesOfQuad = 12;
  return detected_microarchitecture() == Microarchitecture::zen5 &&
         weights.live_quads() * kBytesOfQuad <= level2_cache_bytes() / 8 * 3;
}

// The same bits as floats, which generated code does not tell apart.
std::vector<float> words_of(std::span<const std::uint32_t> quads) {
  std::vector<float> words(quads.size());
  if (!quads.empty()) std::memcpy(words.data(), quads.data(), quads.size_bytes());
  return words;
}

}  // namespace

QuadProduct::QuadProduct(const QuadWeights& weights, std::vector<std::int32_t> bias, const ConvGeometry& geometry,
                         QuadAlgorithm algorithm, const Int8Kernels& kernels)
    : kernels_(kernels),
      geometry_(geometry),
      rows_(weights.rows()),
      channels_(weights.channels()),
      operand_quads_(weights.taps() * weights.channel_quads()),
      group_rows_(ceil_div(ceil_div(rows_, ceil_div(rows_, kMostRows)), kQuad) * kQuad),
      bias_(std::move(bias)),
      row_sums_(weights.row_sums().begin(), weights.row_sums().end()) {
  if (geometry.kernel_h != weights.kernel_h() || geometry.kernel_w != weights.kernel_w()) {
    throw std::invalid_argument("quad product: the window is not that of the weights");
  }
  if (bias_.empty()) bias_.resize(static_cast<std::size_t>(rows_));
  if (static_cast<std::int64_t>(bias_.size()) != rows_) {
    throw std::invalid_argument("quad product: one bias per row");
  }
  if (weights.channels() < kQuad && weights.taps() > 1) {
    const QuadWeights shared = with_shared_taps(weights);
    if (shared.live_quads() < weights.live_quads()) {
      shares_taps_ = true;
      operand_quads_ = shared.channel_quads();
      pack(shared, algorithm);
      return;
    }
  }
  pack(weights, algorithm);
}

void QuadProduct::pack(const QuadWeights& weights, QuadAlgorithm algorithm) {
  const bool may_generate = kernels_.runs_generated && may_execute_code();
  const bool may_choose = algorithm == QuadAlgorithm::fastest;
  if (!may_choose && algorithm != QuadAlgorithm::lists && !may_generate) {
    throw std::invalid_argument("quad product: this process does not run generated code of dot products");
  }
  if (may_choose ? may_generate : algorithm != QuadAlgorithm::lists) {
    const bool in_fours = may_choose ? suits_fours(weights) : algorithm == QuadAlgorithm::code_in_fours;
    try {
      pack_code(weights, in_fours ? CodeWeight::quad_in_fours : CodeWeight::quad);
      return;
    } catch (const CodeMemoryError&) {
      if (!may_choose) throw;
    }
  }
  pack_lists(weights);
}

void QuadProduct::pack_lists(const QuadWeights& weights) {
  const auto taps = static_cast<std::uint32_t>(weights.taps());
  const auto quads = static_cast<std::uint32_t>(weights.channel_quads());
  const auto live = static_cast<std::size_t>(weights.live_quads());
  starts_.reserve(static_cast<std::size_t>(rows_) + 1);
  starts_.push_back(0);
  quads_.reserve(live);
  columns_.reserve(live);
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows_); ++row) {
    for (std::uint32_t i = weights.starts()[row]; i < weights.starts()[row + 1]; ++i) {
      const std::uint32_t column = weights.columns()[i];
      int rest[kQuad];
      for (std::size_t k = 0; k < kQuad; ++k) rest[k] = static_cast<std::int8_t>(weights.quads()[i] >> (8 * k) & 0xff);
      while (const std::uint32_t packed = take_quad(rest, kernels_.most_weight)) {
        columns_.push_back(column % taps * quads + column / taps);
        quads_.push_back(packed);
      }
    }
    if (quads_.size() > std::numeric_limits<std::uint32_t>::max()) {
      throw std::invalid_argument("quad product: too many quads");
    }
    starts_.push_back(static_cast<std::uint32_t>(quads_.size()));
  }
  if (kernels_.sell_rows != nullptr && operand_quads_ <= kMostSellColumns) lay_side_by_side();
}

// Lists of each group of rows in SELL-C-sigma.
void QuadProduct::lay_side_by_side() {
  const std::int64_t padded = ceil_div(rows_, kSellRows) * kSellRows;
  const auto count_of = [&](std::int64_t row) {
    return row < rows_ ? starts_[static_cast<std::size_t>(row) + 1] - starts_[static_cast<std::size_t>(row)] : 0;
  };
  std::vector<std::uint32_t> starts{0};
  Pages<std::uint32_t> quads;
  for (std::int64_t first = 0; first < padded; first += group_rows_) {
    const std::int64_t rows = std::min(group_rows_, padded - first);
    const std::size_t begin = order_.size();
    for (std::int64_t row = 0; row < rows; ++row) order_.push_back(static_cast<std::uint8_t>(row));
    const auto order = std::span(order_).subspan(begin);
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::uint8_t row) { return count_of(first + row); });
    for (std::int64_t place = 0; place < rows; place += kSellRows) {
      const auto some = order.subspan(static_cast<std::size_t>(place), static_cast<std::size_t>(kSellRows));
      const std::size_t at = quads.size();
      const std::size_t count = std::size_t{count_of(first + some[0])} * kSellRows;
      // Zero times any operand.
      quads.resize(at + count, 0);
      sell_columns_.resize(at + count, 0);
      for (std::size_t r = 0; r < some.size(); ++r) {
        const std::int64_t row = first + some[r];
        for (std::uint32_t i = 0; i < count_of(row); ++i) {
          const std::size_t from = starts_[static_cast<std::size_t>(row)] + i;
          quads[at + i * kSellRows + r] = quads_[from];
          sell_columns_[at + i * kSellRows + r] = static_cast<std::uint16_t>(columns_[from]);
        }
      }
      starts.push_back(static_cast<std::uint32_t>(quads.size()));
    }
  }
  sell_columns_.resize(sell_columns_.size() + kOffsetSlack, 0);
  quads_ = std::move(quads);
  starts_ = std::move(starts);
  columns_ = {};
}

void QuadProduct::pack_code(const QuadWeights& weights, CodeWeight weight) {
  const std::int64_t taps = weights.taps();
  const std::int64_t quads = weights.channel_quads();
  const std::vector<float> words = words_of(weights.quads());
  std::vector<WeightRow> rows;
  rows.reserve(static_cast<std::size_t>(rows_));
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows_); ++row) {
    const std::size_t first = weights.starts()[row];
    const std::size_t count = weights.starts()[row + 1] - first;
    rows.push_back({weights.columns().subspan(first, count), std::span(words).subspan(first, count)});
  }
  const double density = static_cast<double>(weights.live_quads()) / static_cast<double>(rows_ * quads * taps);
  sift::cpu::pack_code(rows, quads, taps, unit_channels(taps, density), group_rows_, code_, weight);
  for (std::int64_t tap = 0; tap < taps; ++tap) taps_.push_back(tap * quads * kBlockBytes);
}

std::int64_t QuadProduct::bytes() const {
  return static_cast<std::int64_t>(sizeof(std::int32_t) * (bias_.size() + row_sums_.size() + starts_.size() +
                                                           columns_.size() + quads_.size()) +
                                   sizeof(std::uint16_t) * sell_columns_.size() + order_.size()) +
         code_.bytes();
}

Shape QuadProduct::output_shape(const Shape& in) const {
  if (in.c != channels_) {
    throw std::invalid_argument("quad product: the input does not have the weights' number of channels");
  }
  return {in.n, rows_, geometry_.output_h(in.h), geometry_.output_w(in.w)};
}

void QuadProduct::read(const WindowReader& reader, const std::uint8_t* in, std::uint8_t zero_point, std::int64_t block,
                       std::uint8_t* out) const {
  if (!shares_taps_) return reader.read(kernels_, in, zero_point, block, out);
  std::uint8_t* const taps = byte_buffer(thread_scratch().taps, reader.taps() * kBlockBytes);
  reader.read(kernels_, in, zero_point, block, taps);
  kernels_.share_taps(taps, reader.taps(), channels_, out);
}

void QuadProduct::multiply(const Group& group) const {
  if (is_generated()) return multiply_by_code(group);
  if (!order_.empty()) return multiply_side_by_side(group);
  kernels_.rows({.panel = group.operands,
                 .block_bytes = group.block_bytes,
                 .blocks = group.blocks,
                 .starts = starts_.data(),
                 .columns = columns_.data(),
                 .quads = quads_.data(),
                 .bias = group.bias,
                 .sums = group.sums,
                 .row_begin = group.first_row,
                 .row_end = group.end_row,
                 .group_rows = group_rows_});
}

void QuadProduct::multiply_side_by_side(const Group& group) const {
  // Two blocks share what is loaded of the weights, wherever their operands are.
  constexpr std::int64_t kLeastTile = 2;
  const std::int64_t tile = level1_cache_bytes() / 8 * 7 / group.block_bytes;
  kernels_.sell_rows({.panel = group.operands,
                      .block_bytes = group.block_bytes,
                      .blocks = group.blocks,
                      .tile_blocks = std::max(tile, kLeastTile),
                      .starts = starts_.data() + group.first_row / kSellRows,
                      .columns = sell_columns_.data(),
                      .quads = quads_.data(),
                      .order = order_.data() + group.first_row,
                      .bias = group.bias + group.first_row,
                      .sums = group.sums,
                      .rows = ceil_div(group.end_row - group.first_row, kSellRows) * kSellRows,
                      .group_rows = group_rows_});
}

void QuadProduct::multiply_by_code(const Group& group) const {
  RowsArgs args{};
  code_.describe(args);
  args.panel = reinterpret_cast<const std::byte*>(group.operands);
  args.end_unit = code_.units;
  args.taps = taps_.data();
  args.group_rows = static_cast<std::uint32_t>(group_rows_);
  args.tile_rows = 1;
  args.tile_columns = static_cast<std::uint32_t>(group.blocks);
  args.block_bytes = group.block_bytes;
  args.ahead = group.ahead;
  args.ahead_lines = group.ahead_lines;
  args.quads = group.quads;
  args.bias = reinterpret_cast<const float*>(group.bias);
  args.acc = reinterpret_cast<float*>(group.sums);
  args.row_begin = static_cast<std::uint32_t>(group.first_row);
  args.row_end = static_cast<std::uint32_t>(group.end_row);
  rows_generated(args);
}

void QuadProduct::run_with(ThreadPool& pool, const Shape& shape, const std::uint8_t* in, std::uint8_t zero_point,
                           const Consumer& consumer) const {
  const Shape out = output_shape(shape);
  const std::int64_t blocks = block_count(out);
  if (blocks == 0) return;
  std::vector<std::int32_t> bias(static_cast<std::size_t>(ceil_div(rows_, kSellRows) * kSellRows));
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows_); ++row) {
    // In unsigned arithmetic, which may run over as the sums do.
    bias[row] = static_cast<std::int32_t>(static_cast<std::uint32_t>(bias_[row]) -
                                          zero_point * static_cast<std::uint32_t>(row_sums_[row]));
  }
  const WindowReader reader(geometry_, shape, out);
  const std::int64_t groups = ceil_div(rows_, group_rows_);
  const bool in_place = geometry_.is_pointwise();
  const std::ptrdiff_t operand_bytes = operand_quads_ * kBlockBytes;
  const Sharing sharing(blocks, operand_bytes, groups, pool.threads(), !in_place);
  // Where several tasks read a tile, it is copied once, before.
  const bool copied_first = !in_place && sharing.chunks > 1;
  std::uint8_t* copied = nullptr;
  if (copied_first) {
    copied = byte_buffer(thread_scratch().operands, blocks * operand_bytes);
    pool.parallel_for(blocks,
                      [&](std::int64_t block) { read(reader, in, zero_point, block, copied + block * operand_bytes); });
  }
  pool.parallel_for(sharing.tiles * sharing.chunks, [&](std::int64_t task) {
    const std::int64_t tile = task / sharing.chunks;
    const std::int64_t chunk = task % sharing.chunks;
    const std::int64_t first = blocks * tile / sharing.tiles;
    const std::int64_t count = blocks * (tile + 1) / sharing.tiles - first;
    if (count == 0) return;
    Scratch& scratch = thread_scratch();
    const std::uint8_t* operands = (in_place ? in : copied) + first * operand_bytes;
    if (!in_place && !copied_first) {
      std::uint8_t* const own = byte_buffer(scratch.operands, count * operand_bytes);
      for (std::int64_t i = 0; i < count; ++i) {
        read(reader, in, zero_point, first + i, own + i * operand_bytes);
      }
      operands = own;
    }
    // The next tile's operands, which this thread reads next, if they come from memory.
    constexpr std::ptrdiff_t kLineBegin[] = {0};
    const bool is_far = blocks * operand_bytes >= kSharedCacheBytes;
    const std::int64_t left = in_place && sharing.chunks == 1 && is_far ? blocks - first - count : 0;
    Prefetcher ahead(kLineBegin, reinterpret_cast<const float*>(operands + count * operand_bytes), kLanes,
                     std::min(left, count) * operand_bytes / kBlockBytes);
    const std::int64_t ahead_lines = ceil_div(ahead.left(), groups);
    const std::int64_t block_sums = group_rows_ * kQuadBlock;
    auto* const sums =
        reinterpret_cast<std::int32_t*>(scratch.sums.floats(static_cast<std::size_t>(count * block_sums)));
    for (std::int64_t group = groups * chunk / sharing.chunks; group < groups * (chunk + 1) / sharing.chunks; ++group) {
      const std::int64_t row = group * group_rows_;
      const std::int64_t end = std::min(row + group_rows_, rows_);
      // What the code stores by itself.
      const bool stored = is_generated() && consumer.quads != nullptr && (end - row) % kQuad == 0;
      QuadOutput quads{};
      if (stored) {
        quads = *consumer.quads;
        quads.out += first * quads.block_bytes;
        if (quads.other != nullptr) quads.other += first * quads.block_bytes;
        const auto floats = static_cast<std::ptrdiff_t>(first * quads.block_bytes * sizeof(float));
        if (quads.floats.out != nullptr) quads.floats.out += floats;
        if (quads.floats.residual != nullptr) quads.floats.residual += floats;
      }
      multiply({.operands = operands,
                .block_bytes = operand_bytes,
                .blocks = count,
                .bias = bias.data(),
                .first_row = row,
                .end_row = end,
                .sums = sums,
                .quads = stored ? &quads : nullptr,
                .ahead = &ahead,
                .ahead_lines = ahead_lines});
      if (stored) continue;
      for (std::int64_t i = 0; i < count; ++i) {
        consumer.call(consumer.context,
                      {.block = first + i, .first_row = row, .rows = end - row, .sums = sums + i * block_sums});
      }
    }
  });
}

}  // namespace sift::cpu
