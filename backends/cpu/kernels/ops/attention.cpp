#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "ops/reorder.h"

namespace sift::cpu {
namespace {

// Of a thread that attends.
struct TileScratch {
  AlignedBuffer panel;
  AlignedBuffer scores;
  AlignedBuffer sums;
  AlignedBuffer mask;
};

TileScratch& tile_scratch() {
  static thread_local TileScratch scratch;
  return scratch;
}

// Of the thread that calls `run` on NCHW; the others read it while they work for it.
struct LanesScratch {
  AlignedBuffer queries;
  AlignedBuffer keys;
  AlignedBuffer values;
  AlignedBuffer out;
};

LanesScratch& lanes_scratch() {
  static thread_local LanesScratch scratch;
  return scratch;
}

float* floats(AlignedBuffer& buffer, std::int64_t count) { return buffer.floats(static_cast<std::size_t>(count)); }

void check_mask_size(std::int64_t size, std::int64_t full) {
  if (size != 1 && size != full) throw std::invalid_argument("attention: the mask does not fit the scores");
}

void check_roundings(std::span<const Rounding> roundings) {
  constexpr float kMost = 0x1p22F;
  for (const Rounding& rounding : roundings) {
    for (const float factor : {rounding.steps, rounding.scale}) {
      if (!(factor > 0) || !std::isfinite(factor)) {
        throw std::invalid_argument("attention: steps and scale of a rounding must be positive and finite");
      }
    }
    if (!(-kMost < rounding.low && rounding.low <= rounding.high && rounding.high < kMost)) {
      throw std::invalid_argument("attention: bounds of a rounding must be in order and below 2**22");
    }
  }
}

}  // namespace

Attention::Attention(const AttentionOptions& options, const KernelTable& kernels)
    : options_(options), kernels_(kernels) {
  const AttentionOptions& o = options_;
  if (o.sequences < 0 || o.tokens < 0 || o.key_tokens < 0 || o.heads < 1 || o.depth < 1 || o.value_depth < 1) {
    throw std::invalid_argument("attention: heads and depths must be positive, sequences and tokens not negative");
  }
  if (!o.head_scales.empty() && static_cast<std::int64_t>(o.head_scales.size()) != o.heads) {
    throw std::invalid_argument("attention: one scale per head");
  }
  check_head_channels("attention", o.queries, o.heads, o.depth);
  check_head_channels("attention", o.keys, o.heads, o.depth);
  check_head_channels("attention", o.values, o.heads, o.value_depth);
  for (const auto* roundings : {&o.score_roundings, &o.masked_roundings, &o.weight_roundings}) {
    check_roundings(*roundings);
  }
  // Counted, so that no product below runs over.
  element_count({o.sequences, o.tokens, o.queries.count}, o.layout);
  element_count({o.sequences, o.key_tokens, std::max(o.keys.count, o.values.count)}, o.layout);
  element_count({o.sequences, o.heads, o.tokens, o.key_tokens}, Layout::nchw_n16);
  if (!o.mask) return;
  // No sequences take any masks.
  if (o.mask->sequences < 0 || (o.sequences > 0 && (o.mask->sequences == 0 || o.sequences % o.mask->sequences != 0))) {
    throw std::invalid_argument("attention: the sequences cannot take the masks in turn");
  }
  check_mask_size(o.mask->heads, o.heads);
  check_mask_size(o.mask->queries, o.tokens);
  check_mask_size(o.mask->keys, o.key_tokens);
}

Shape Attention::output_shape(const Shape& in) const {
  if (in.n != rows() || in.c != options_.queries.count || in.h != 1 || in.w != 1) {
    throw std::invalid_argument("attention: the input must be [sequences tokens][channels of the queries]");
  }
  return {in.n, options_.heads * options_.value_depth, 1, 1};
}

OtherSizes Attention::other_sizes(const Shape&) const {
  return {.second = element_count({key_rows(), options_.keys.count}, options_.layout),
          .third = element_count({key_rows(), options_.values.count}, options_.layout),
          .mask = options_.mask ? options_.mask->size() : OtherSizes::kNotTaken};
}

void Attention::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  const Shape out_shape = output_shape(shape);
  if (rows() == 0) return;
  if (others.second == nullptr || others.third == nullptr || (options_.mask && others.mask == nullptr)) {
    throw std::invalid_argument("attention: keys, values or the mask are missing");
  }
  if (options_.key_tokens == 0) {
    std::fill_n(out, element_count(out_shape, options_.layout), 0.0F);
    return;
  }
  if (options_.layout == Layout::nchw_n16) {
    return run_lanes(pool, in, others.second, others.third, others.mask, out);
  }
  LanesScratch& scratch = lanes_scratch();
  const Reorder to_lanes(Layout::nchw, kernels_);
  const auto moved = [&](AlignedBuffer& buffer, const float* from, const Shape& of) {
    float* const to = floats(buffer, element_count(of, Layout::nchw_n16));
    to_lanes.run(pool, of, from, {}, to);
    return to;
  };
  const float* const queries = moved(scratch.queries, in, shape);
  const auto moved_once = [&](AlignedBuffer& buffer, const float* from, std::int64_t channels) {
    const Shape of{key_rows(), channels};
    return from == in && of == shape ? queries : moved(buffer, from, of);
  };
  const float* const keys = moved_once(scratch.keys, others.second, options_.keys.count);
  const float* const values = moved_once(scratch.values, others.third, options_.values.count);
  float* const lanes = floats(scratch.out, element_count(out_shape, Layout::nchw_n16));
  run_lanes(pool, queries, keys, values, others.mask, lanes);
  Reorder(Layout::nchw_n16, kernels_).run(pool, out_shape, lanes, {}, out);
}

// The mask of one head for `blocks` blocks of queries from `first_query` on, as the kernel reads it. The block may
// begin before the sequence and end after it: what lies outside has the mask of the nearest query.
const float* Attention::tile_mask(const float* mask, std::int64_t sequence, std::int64_t head, std::int64_t first_query,
                                  std::int64_t blocks) const {
  const MaskShape& shape = *options_.mask;
  const std::int64_t keys = options_.key_tokens;
  const float* const of_head =
      mask + (sequence % shape.sequences * shape.heads + (shape.heads > 1 ? head : 0)) * shape.queries * shape.keys;
  if (shape.queries == 1 && shape.keys == keys) return of_head;
  float* const turned = floats(tile_scratch().mask, blocks * keys * kLanes);
  if (shape.keys != keys) {
    // Softmax is the same whatever is added to all keys, but for infinity and NaN.
    for (std::int64_t place = 0; place < blocks * keys * kLanes; ++place) {
      const std::int64_t query = first_query + place / (keys * kLanes) * kLanes + place % kLanes;
      turned[place] = of_head[std::clamp<std::int64_t>(query, 0, shape.queries - 1)];
    }
    return turned;
  }
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t first = first_query + block * kLanes;
    float* const to = turned + block * keys * kLanes;
    if (first >= 0 && first + kLanes <= shape.queries) {
      kernels_.interleave(of_head + first * keys, keys, keys, static_cast<int>(kLanes), to, false);
      continue;
    }
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float* const from = of_head + std::clamp<std::int64_t>(first + lane, 0, shape.queries - 1) * keys;
      for (std::int64_t key = 0; key < keys; ++key) to[key * kLanes + lane] = from[key];
    }
  }
  return turned;
}

void Attention::run_lanes(ThreadPool& pool, const float* queries, const float* keys, const float* values,
                          const float* mask, float* out) const {
  const AttentionOptions& o = options_;
  // A sequence may begin and end within a block, whose other lanes are of its neighbours.
  const std::int64_t most_blocks = ceil_div(o.tokens, kLanes) + (o.tokens % kLanes == 0 ? 0 : 1);
  const std::int64_t tiles = ceil_div(most_blocks, kernels_.most_query_blocks);
  const std::int64_t out_channels = o.heads * o.value_depth;
  pool.parallel_for(o.sequences * tiles * o.heads, [&](std::int64_t task) {
    const std::int64_t head = task % o.heads;
    const std::int64_t tile = task / o.heads % tiles;
    const std::int64_t sequence = task / o.heads / tiles;
    const std::int64_t first_row = sequence * o.tokens;
    const std::int64_t end_row = first_row + o.tokens;
    const std::int64_t first_block = first_row / kLanes;
    const std::int64_t block_count = ceil_div(end_row, kLanes) - first_block;
    const std::int64_t begin = first_block + block_count * tile / tiles;
    const std::int64_t blocks = first_block + block_count * (tile + 1) / tiles - begin;
    if (blocks == 0) return;
    // Lanes after the last sequence are written with it: they hold finite values.
    const std::int64_t end_query = sequence + 1 == o.sequences ? ceil_div(end_row, kLanes) * kLanes : end_row;
    const auto channels_of = [&](const float* tensor, const HeadChannels& channels, std::int64_t depth,
                                 std::int64_t block) {
      return tensor + (block * channels.count + channels.first + head * depth) * kLanes;
    };
    TileScratch& scratch = tile_scratch();
    const std::int64_t first_key = sequence * o.key_tokens;
    const std::int64_t key_block = first_key / kLanes;
    const std::int64_t end_key = first_key + o.key_tokens - key_block * kLanes;
    kernels_.attend({
        .queries = channels_of(queries, o.queries, o.depth, begin),
        .keys = channels_of(keys, o.keys, o.depth, key_block),
        .values = channels_of(values, o.values, o.value_depth, key_block),
        .out = out + (begin * out_channels + head * o.value_depth) * kLanes,
        .query_stride = o.queries.count * kLanes,
        .key_stride = o.keys.count * kLanes,
        .value_stride = o.values.count * kLanes,
        .out_stride = out_channels * kLanes,
        .depth = o.depth,
        .value_depth = o.value_depth,
        .blocks = blocks,
        .first_query = first_row - begin * kLanes,
        .end_query = end_query - begin * kLanes,
        .first_key = first_key - key_block * kLanes,
        .end_key = end_key,
        .scale = o.head_scales.empty() ? o.scale : o.scale * o.head_scales[static_cast<std::size_t>(head)],
        .softcap = 0,
        .nan_to_zero = o.nan_to_zero,
        .mask_by_query = o.mask && (o.mask->queries > 1 || o.mask->keys != o.key_tokens),
        .mask = o.mask ? tile_mask(mask, sequence, head, begin * kLanes - first_row, blocks) : nullptr,
        .roundings = {.scores = o.score_roundings, .masked = o.masked_roundings, .weights = o.weight_roundings},
        .panel = floats(scratch.panel, o.depth * blocks * kLanes),
        .scores = floats(scratch.scores, ceil_div(end_key, kLanes) * blocks * kLanes * kLanes),
        .sums = floats(scratch.sums, o.value_depth * blocks * kLanes),
    });
  });
}

}  // namespace sift::cpu
