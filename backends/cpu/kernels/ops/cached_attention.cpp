#include "ops/cached_attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"

namespace sift::cpu {
namespace {

// With at least this many new tokens, the tokens lie in the lanes.
constexpr std::int64_t kLeastInLanes = 4;
// What masks add to scores that do not count: their weights are zero beside any other.
constexpr float kHidden = -1e30F;

struct Scratch {
  AlignedBuffer panel;
  AlignedBuffer scores;
  AlignedBuffer sums;
  AlignedBuffer mask;
};

Scratch& scratch() {
  static thread_local Scratch own;
  return own;
}

float* floats(AlignedBuffer& buffer, std::int64_t count) { return buffer.floats(static_cast<std::size_t>(count)); }

bool fits(std::int64_t size, std::int64_t full) { return size == 1 || size == full; }

void copy_rows(float* to, const float* from, std::int64_t count) {
  if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

// One head of the cache: the past, where it is not there already, the new tokens after it, and zeros for what is left.
void append_rows(float* to, const float* past, std::int64_t past_rows, std::int64_t first, const float* fresh,
                 std::int64_t stride, std::int64_t tokens, std::int64_t total, std::int64_t depth) {
  if (to != past) {
    copy_rows(to, past, past_rows * depth);
    if (past_rows < total) std::fill(to + past_rows * depth, to + total * depth, 0.0F);
  }
  for (std::int64_t token = 0; token < tokens; ++token) {
    copy_rows(to + (first + token) * depth, fresh + token * stride, depth);
  }
}

}  // namespace

// What the functions of one run share.
struct CachedAttention::Run {
  const KeyValueCache& cache;
  const float* queries;
  const float* keys;
  const float* values;
  float* out;

  const CachedAttentionOptions& options;

  std::int64_t past(std::int64_t sequence) const {
    return cache.past_of != nullptr ? cache.past_of[sequence] : cache.past;
  }
  // Keys of a sequence that count.
  std::int64_t end(std::int64_t sequence) const {
    if (cache.ends_of != nullptr) return cache.ends_of[sequence];
    return options.appends ? past(sequence) + options.tokens : cache.total;
  }
  const float* keys_of(std::int64_t sequence, std::int64_t head) const {
    return options.appends ? cache.keys.head(sequence, head) : cache.past_keys.head(sequence, head);
  }
  const float* values_of(std::int64_t sequence, std::int64_t head) const {
    return options.appends ? cache.values.head(sequence, head) : cache.past_values.head(sequence, head);
  }
  const float* mask(std::int64_t sequence, std::int64_t head, std::int64_t token) const {
    const KeyValueCache& c = cache;
    if (c.mask == nullptr) return nullptr;
    const std::int64_t of_sequence = c.mask_sequences > 1 ? sequence : 0;
    const std::int64_t of_head = c.mask_heads > 1 ? head : 0;
    const std::int64_t of_token = c.mask_queries > 1 ? token : 0;
    return c.mask + ((of_sequence * c.mask_heads + of_head) * c.mask_queries + of_token) * c.mask_keys;
  }
};

CachedAttention::CachedAttention(const CachedAttentionOptions& options, const KernelTable& kernels)
    : options_(options), kernels_(kernels) {
  const CachedAttentionOptions& o = options_;
  if (o.sequences < 0 || o.tokens < 0 || o.heads < 1 || o.key_heads < 1 || o.depth < 1 || o.value_depth < 1) {
    throw std::invalid_argument(
        "cached attention: heads and depths must be positive, sequences and tokens not negative");
  }
  if (o.heads % o.key_heads != 0) throw std::invalid_argument("cached attention: heads of keys must divide the heads");
  if (o.window < 0 || (o.window > 0 && !o.is_causal)) {
    throw std::invalid_argument("cached attention: a window must be positive, and its attention causal");
  }
  if (!(o.softcap >= 0)) throw std::invalid_argument("cached attention: a cap of scores must be positive");
  check_head_channels("cached attention", o.queries, o.heads, o.depth);
  if (o.appends) {
    check_head_channels("cached attention", o.keys, o.key_heads, o.depth);
    check_head_channels("cached attention", o.values, o.key_heads, o.value_depth);
  } else if (o.is_causal) {
    throw std::invalid_argument("cached attention: a cache that is only read has no order with new tokens");
  }
  element_count({o.sequences, o.tokens, std::max({o.queries.count, o.keys.count, o.values.count})}, Layout::nchw);
  element_count({o.sequences, o.tokens, o.heads, o.value_depth}, Layout::nchw);
}

Shape CachedAttention::output_shape(const Shape& in) const {
  if (in.n != rows() || in.c != options_.queries.count || in.h != 1 || in.w != 1) {
    throw std::invalid_argument("cached attention: the input must be [sequences tokens][channels of the queries]");
  }
  return {in.n, options_.heads * options_.value_depth, 1, 1};
}

OtherSizes CachedAttention::other_sizes(const Shape&) const {
  if (!options_.appends) return {};
  return {.second = element_count({rows(), options_.keys.count}, Layout::nchw),
          .third = element_count({rows(), options_.values.count}, Layout::nchw)};
}

void CachedAttention::run(ThreadPool&, const Shape&, const float*, const Others&, float*) const {
  throw std::invalid_argument("cached attention: the run has no cache");
}

void CachedAttention::check(const KeyValueCache& cache) const {
  const CachedAttentionOptions& o = options_;
  if (cache.sequences != o.sequences || cache.heads != o.key_heads || cache.depth != o.depth ||
      cache.value_depth != o.value_depth) {
    throw std::invalid_argument("cached attention: the cache has other sequences, heads or depths");
  }
  if (!o.appends && (cache.total != cache.past || cache.past_of != nullptr)) {
    throw std::invalid_argument("cached attention: a cache that is only read has no new tokens");
  }
  if (cache.past < 0 || (o.appends && cache.past_of == nullptr && cache.total != cache.past + o.tokens)) {
    throw std::invalid_argument("cached attention: the cache has no room for exactly the past and the new tokens");
  }
  for (std::int64_t sequence = 0; cache.ends_of != nullptr && sequence < o.sequences; ++sequence) {
    const std::int64_t end = cache.ends_of[sequence];
    if (end < (o.is_causal ? o.tokens : 1) || end > cache.total) {
      throw std::invalid_argument("cached attention: a sequence ends outside of its cache, or before its new tokens");
    }
  }
  for (std::int64_t sequence = 0; cache.past_of != nullptr && sequence < o.sequences; ++sequence) {
    const std::int64_t past = cache.past_of[sequence];
    if (past < 0 || past > cache.past || past > cache.total - o.tokens) {
      throw std::invalid_argument("cached attention: a sequence has more tokens than its cache");
    }
  }
  if (cache.mask == nullptr) return;
  if (!fits(cache.mask_sequences, o.sequences) || !fits(cache.mask_heads, o.heads) ||
      !fits(cache.mask_queries, o.tokens) || cache.mask_keys != cache.total) {
    throw std::invalid_argument("cached attention: the mask does not fit the scores");
  }
}

void CachedAttention::run_with_cache(ThreadPool& pool, const Shape& shape, const float* in, const Others& others,
                                     const KeyValueCache& cache, float* out) const {
  output_shape(shape);
  check(cache);
  const CachedAttentionOptions& o = options_;
  if (rows() == 0) return;
  if (o.appends && (others.second == nullptr || others.third == nullptr || cache.keys.data == nullptr)) {
    throw std::invalid_argument("cached attention: keys or values are missing");
  }
  if (cache.total == 0) throw std::invalid_argument("cached attention: there is no key");
  const Run run{cache, in, others.second, others.third, out, options_};
  const std::int64_t group = o.heads / o.key_heads;
  const std::int64_t key_heads = o.sequences * o.key_heads;
  if (o.tokens < kLeastInLanes && key_heads >= pool.threads()) {
    // A step: each head of the cache is written and read by one thread, without a wait between.
    pool.parallel_for(key_heads, [&](std::int64_t task) {
      const std::int64_t sequence = task / o.key_heads;
      if (o.appends) append(run, sequence, task % o.key_heads);
      const std::int64_t first = task % o.key_heads * group;
      for (std::int64_t head = first; head < first + group; ++head) {
        for (std::int64_t token = 0; token < o.tokens; ++token) {
          Ahead ahead{.values = head == first && token == 0};
          if (head == first + group - 1 && token == o.tokens - 1 && task + 1 < key_heads) {
            ahead.keys = run.keys_of((task + 1) / o.key_heads, (task + 1) % o.key_heads);
          }
          attend_one(run, sequence, head, token, ahead);
        }
      }
    });
    return;
  }
  if (o.appends) {
    pool.parallel_for(key_heads, [&](std::int64_t task) { append(run, task / o.key_heads, task % o.key_heads); });
  }
  if (o.tokens < kLeastInLanes) {
    pool.parallel_for(rows() * o.heads, [&](std::int64_t task) {
      const std::int64_t row = task / o.heads;
      attend_one(run, row / o.tokens, task % o.heads, row % o.tokens, {});
    });
    return;
  }
  const std::int64_t most = kernels_.most_query_blocks * kLanes;
  const std::int64_t tiles = ceil_div(o.tokens, most);
  pool.parallel_for(o.sequences * o.heads * tiles, [&](std::int64_t task) {
    const std::int64_t first = task % tiles * most;
    const std::int64_t head = task / tiles % o.heads;
    attend_tile(run, task / tiles / o.heads, head, first, std::min(most, o.tokens - first));
  });
}

void CachedAttention::append(const Run& run, std::int64_t sequence, std::int64_t key_head) const {
  const CachedAttentionOptions& o = options_;
  const KeyValueCache& c = run.cache;
  const std::int64_t row = sequence * o.tokens;
  const std::int64_t first = run.past(sequence);
  append_rows(c.keys.head(sequence, key_head), c.past_keys.head(sequence, key_head), c.past, first,
              run.keys + row * o.keys.count + o.keys.first + key_head * o.depth, o.keys.count, o.tokens, c.total,
              o.depth);
  append_rows(c.values.head(sequence, key_head), c.past_values.head(sequence, key_head), c.past, first,
              run.values + row * o.values.count + o.values.first + key_head * o.value_depth, o.values.count, o.tokens,
              c.total, o.value_depth);
}

// The first key that a new token attends to, behind `before` keys of older ones.
std::int64_t CachedAttention::first_seen(std::int64_t before, std::int64_t token) const {
  return options_.window == 0 ? 0 : std::max<std::int64_t>(before + token + 1 - options_.window, 0);
}

void CachedAttention::attend_one(const Run& run, std::int64_t sequence, std::int64_t head, std::int64_t token,
                                 const Ahead& ahead) const {
  const CachedAttentionOptions& o = options_;
  const std::int64_t row = sequence * o.tokens + token;
  const std::int64_t key_head = head / (o.heads / o.key_heads);
  const std::int64_t all = run.end(sequence);
  const std::int64_t begin = first_seen(all - o.tokens, token);
  const std::int64_t seen = (o.is_causal ? all - o.tokens + token + 1 : all) - begin;
  Scratch& own = scratch();
  float* const query = floats(own.panel, ceil_div(o.depth, kLanes) * kLanes);
  const float* const from = run.queries + row * o.queries.count + o.queries.first + head * o.depth;
  for (std::int64_t c = 0; c < o.depth; ++c) query[c] = from[c] * o.scale;
  const float* const mask = run.mask(sequence, head, token);
  AttentionArgs args{};
  args.keys = run.keys_of(sequence, key_head) + begin * o.depth;
  args.values = run.values_of(sequence, key_head) + begin * o.value_depth;
  args.out = run.out + (row * o.heads + head) * o.value_depth;
  args.key_stride = o.depth;
  args.value_stride = o.value_depth;
  args.depth = o.depth;
  args.value_depth = o.value_depth;
  args.end_key = seen;
  args.softcap = o.softcap;
  args.nan_to_zero = o.nan_to_zero;
  args.mask = mask != nullptr ? mask + begin : nullptr;
  args.asks_for_values = ahead.values;
  args.next_keys = ahead.keys;
  args.panel = query;
  args.scores = floats(own.scores, ceil_div(seen, kLanes) * kLanes);
  kernels_.attend_row(args);
}

void CachedAttention::attend_tile(const Run& run, std::int64_t sequence, std::int64_t head, std::int64_t first,
                                  std::int64_t count) const {
  const CachedAttentionOptions& o = options_;
  const std::int64_t key_head = head / (o.heads / o.key_heads);
  const std::int64_t blocks = ceil_div(count, kLanes);
  const std::int64_t lanes = blocks * kLanes;
  const std::int64_t all = run.end(sequence);
  const std::int64_t before = all - o.tokens;
  Scratch& own = scratch();
  float* const panel = floats(own.panel, o.depth * lanes);
  // Lanes without a query have the last one.
  const auto token_of = [&](std::int64_t lane) { return first + std::min(lane, count - 1); };
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    const std::int64_t row = sequence * o.tokens + token_of(lane);
    const float* const from = run.queries + row * o.queries.count + o.queries.first + head * o.depth;
    for (std::int64_t c = 0; c < o.depth; ++c) panel[c * lanes + lane] = from[c] * o.scale;
  }
  // Keys after the last one that a query of the tile sees are left out, unless a query sees none.
  const auto seen_by = [&](std::int64_t lane) {
    std::int64_t end = o.is_causal ? before + token_of(lane) + 1 : all;
    const float* const mask = run.mask(sequence, head, token_of(lane));
    if (mask == nullptr) return end;
    const std::int64_t least = first_seen(before, token_of(lane));
    std::int64_t last = end;
    while (last > least && mask[last - 1] < kHidden) --last;
    return last > least ? last : end;
  };
  std::int64_t end = 0;
  for (std::int64_t lane = 0; lane < count; ++lane) end = std::max(end, seen_by(lane));
  const std::int64_t begin = first_seen(before, first);
  const std::int64_t keys = end - begin;
  float* mask = nullptr;
  if (run.cache.mask != nullptr || o.is_causal) {
    mask = floats(own.mask, lanes * keys);
    for (std::int64_t block = 0; block < blocks; ++block) {
      float* const to = mask + block * keys * kLanes;
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const std::int64_t token = token_of(block * kLanes + lane);
        const float* const from = run.mask(sequence, head, token);
        const std::int64_t least = first_seen(before, token);
        const std::int64_t seen = o.is_causal ? std::min(before + token + 1, end) : end;
        for (std::int64_t key = begin; key < end; ++key) {
          const bool counts = least <= key && key < seen;
          const float added = from != nullptr ? from[key] : 0.0F;
          to[(key - begin) * kLanes + lane] = counts ? added : -std::numeric_limits<float>::infinity();
        }
      }
    }
  }
  AttentionArgs args{};
  args.keys = run.keys_of(sequence, key_head) + begin * o.depth;
  args.values = run.values_of(sequence, key_head) + begin * o.value_depth;
  args.key_stride = o.depth;
  args.value_stride = o.value_depth;
  args.depth = o.depth;
  args.value_depth = o.value_depth;
  args.blocks = blocks;
  args.end_key = keys;
  args.softcap = o.softcap;
  args.nan_to_zero = o.nan_to_zero;
  args.mask_by_query = true;
  args.mask = mask;
  args.panel = panel;
  args.scores = floats(own.scores, keys * lanes);
  args.sums = floats(own.sums, o.value_depth * lanes);
  kernels_.attend_rows(args);
  for (std::int64_t lane = 0; lane < count; ++lane) {
    const std::int64_t row = sequence * o.tokens + first + lane;
    float* const to = run.out + (row * o.heads + head) * o.value_depth;
    for (std::int64_t c = 0; c < o.value_depth; ++c) to[c] = args.sums[c * lanes + lane];
  }
}

}  // namespace sift::cpu
