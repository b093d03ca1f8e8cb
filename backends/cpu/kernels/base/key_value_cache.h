// Keys and values of earlier tokens, in the layout of a decoder's inputs and outputs.
#pragma once

#include <cstdint>

namespace sift::cpu {

// [sequences][heads][tokens][depth], with contiguous tokens and depth; strides are in floats.
template <typename Float>
struct CachePlace {
  Float* data = nullptr;
  std::int64_t sequence_stride = 0;
  std::int64_t head_stride = 0;

  Float* head(std::int64_t sequence, std::int64_t head) const {
    return data + sequence * sequence_stride + head * head_stride;
  }
};

// The arguments of one run of an operator with a cache; sizes that grow from token to token are not part of the
// operator. `keys` and `values` may be the memory of the past ones, and only the new tokens are written then. They are
// null if the cache is only read, as in cross-attention.
struct KeyValueCache {
  CachePlace<const float> past_keys;
  CachePlace<const float> past_values;
  CachePlace<float> keys;
  CachePlace<float> values;
  std::int64_t sequences = 0;
  std::int64_t heads = 0;
  std::int64_t depth = 0;
  std::int64_t value_depth = 0;
  std::int64_t past = 0;   // tokens of the past
  std::int64_t total = 0;  // tokens that keys and values have room for

  // Number of past tokens of each sequence, if they differ; null: `past`.
  const std::int64_t* past_of = nullptr;
  // Number of tokens of each sequence that are attended to; null: its past and new tokens.
  const std::int64_t* ends_of = nullptr;
  // Added to the scores of (sequences, heads, new tokens, total); null: nothing. Each size is that of the scores or 1.
  const float* mask = nullptr;
  std::int64_t mask_sequences = 1;
  std::int64_t mask_heads = 1;
  std::int64_t mask_queries = 1;
  std::int64_t mask_keys = 1;
};

}  // namespace sift::cpu
