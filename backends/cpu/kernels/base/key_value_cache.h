// Keys and values of the tokens before, as a decoder's inputs and outputs have them.
#pragma once

#include <cstdint>

namespace sift::cpu {

// [sequences][heads][tokens][depth], of which tokens and depth lie one after the other; strides in floats.
template <typename Float>
struct CachePlace {
  Float* data = nullptr;
  std::int64_t sequence_stride = 0;
  std::int64_t head_stride = 0;

  Float* head(std::int64_t sequence, std::int64_t head) const {
    return data + sequence * sequence_stride + head * head_stride;
  }
};

// What belongs to one run of an operator that takes a cache: sizes that grow from token to token are not part of the
// operator. `keys` and `values` may lie where the past ones do; then nothing but the new tokens is written. They are
// not there where a cache is only read, as that of another text is.
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

  // Tokens of each sequence's past, where they differ; null: all of them.
  const std::int64_t* past_of = nullptr;
  // Tokens of each sequence that count; null: those of its past, and the new ones.
  const std::int64_t* ends_of = nullptr;
  // Added to the scores of (sequences, heads, new tokens, total); null: nothing. Each size is that of the scores or 1.
  const float* mask = nullptr;
  std::int64_t mask_sequences = 1;
  std::int64_t mask_heads = 1;
  std::int64_t mask_queries = 1;
  std::int64_t mask_keys = 1;
};

}  // namespace sift::cpu
