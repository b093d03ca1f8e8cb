// Attention of new tokens to each other and to earlier tokens, whose keys and values are in a cache.
#pragma once

#include <cstdint>

#include "base/key_value_cache.h"
#include "base/op.h"
#include "ops/attention.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

struct CachedAttentionOptions {
  std::int64_t sequences = 1;
  std::int64_t tokens = 1;  // new ones of each sequence
  std::int64_t heads = 1;
  std::int64_t key_heads = 1;  // each serves heads / key_heads heads of queries
  std::int64_t depth = 1;
  std::int64_t value_depth = 1;
  float scale = 1;
  HeadChannels queries;
  HeadChannels keys;
  HeadChannels values;
  bool appends = true;       // otherwise the cache is only read, as in cross-attention, and there are no new keys
  bool is_causal = false;    // a token attends only to itself and to earlier tokens, whatever the mask is
  std::int64_t window = 0;   // in causal attention: the maximum number of tokens attended to; 0: all
  float softcap = 0;         // a score s becomes softcap tanh(s / softcap) before the mask is added; 0: unchanged
  bool nan_to_zero = false;  // as in Attention
};

// Input, second and third operand are queries, keys and values of the new tokens, [sequences tokens][channels]. Keys
// and values are appended to the cache, and the queries attend to all of it. The length of the cache is an argument of
// the run, so one operator serves all steps. If nothing is appended, there is no second and third operand.
class CachedAttention final : public Op {
 public:
  // Throws std::invalid_argument for a size below one (sequences and tokens may be zero), for more heads than an
  // operand has channels for, for a window without a causal order, and for a causal order in a cache that is only read.
  CachedAttention(const CachedAttentionOptions& options, const KernelTable& kernels);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return Layout::nchw; }
  OtherSizes other_sizes(const Shape& in) const override;
  bool takes_cache() const override { return true; }
  // Always throws std::invalid_argument, because the operator needs a cache.
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;
  // Throws std::invalid_argument for a cache that does not fit.
  void run_with_cache(ThreadPool& pool, const Shape& shape, const float* in, const Others& others,
                      const KeyValueCache& cache, float* out) const override;

 private:
  struct Run;
  std::int64_t rows() const { return options_.sequences * options_.tokens; }
  void check(const KeyValueCache& cache) const;
  std::int64_t first_seen(std::int64_t before, std::int64_t token) const;
  void append(const Run& run, std::int64_t sequence, std::int64_t key_head) const;
  // What is asked for while a token is attended to: its values, and the keys of the next head.
  struct Ahead {
    bool values = false;
    const float* keys = nullptr;
  };
  void attend_one(const Run& run, std::int64_t sequence, std::int64_t head, std::int64_t token,
                  const Ahead& ahead) const;
  void attend_tile(const Run& run, std::int64_t sequence, std::int64_t head, std::int64_t first,
                   std::int64_t count) const;

  CachedAttentionOptions options_;
  const KernelTable& kernels_;
};

}  // namespace sift::cpu
