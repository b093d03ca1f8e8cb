#include "bind/cache_arguments.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <utility>

namespace sift::cpu {
namespace {

// Rows of one head lie one after the other, and sequences and heads anywhere.
template <typename Float, typename Array>
CachePlace<Float> cache_place(const Array& array) {
  const bool in_order =
      array.size() == 0 || ((array.shape(3) == 1 || array.stride(3) == 1) &&
                            (array.shape(2) == 1 || array.stride(2) == static_cast<std::int64_t>(array.shape(3))));
  if (!in_order || !is_aligned(array)) {
    throw std::invalid_argument("sequence: the rows of a cache must be aligned, one after the other");
  }
  return {array.data(), array.stride(0), array.stride(1)};
}

template <typename First, typename Second>
bool are_alike(const First& first, const Second& second, std::initializer_list<std::size_t> axes) {
  return std::all_of(axes.begin(), axes.end(),
                     [&](std::size_t axis) { return first.shape(axis) == second.shape(axis); });
}

[[noreturn]] void refuse_arrays() {
  throw std::invalid_argument("sequence: keys and values of a cache do not fit each other");
}

template <typename Array>
std::int64_t size_of(const Array& array, std::size_t axis) {
  return static_cast<std::int64_t>(array.shape(axis));
}

KeyValueCache cache_of_arrays(const CacheArrays& spec) {
  const auto& past_keys = std::get<0>(spec);
  const auto& past_values = std::get<1>(spec);
  const auto& keys = std::get<2>(spec);
  const auto& values = std::get<3>(spec);
  const bool is_written = keys.has_value() && values.has_value();
  if (!are_alike(past_keys, past_values, {0, 1, 2}) || keys.has_value() != values.has_value() ||
      (is_written && (!are_alike(*keys, *values, {0, 1, 2}) || !are_alike(past_keys, *keys, {0, 1, 3}) ||
                      !are_alike(past_values, *values, {3})))) {
    refuse_arrays();
  }
  KeyValueCache cache{};
  cache.past_keys = cache_place<const float>(past_keys);
  cache.past_values = cache_place<const float>(past_values);
  if (is_written) {
    cache.keys = cache_place<float>(*keys);
    cache.values = cache_place<float>(*values);
  }
  cache.sequences = size_of(past_keys, 0);
  cache.heads = size_of(past_keys, 1);
  cache.depth = size_of(past_keys, 3);
  cache.value_depth = size_of(past_values, 3);
  cache.past = size_of(past_keys, 2);
  cache.total = is_written ? size_of(*keys, 2) : cache.past;
  return cache;
}

void add_lengths_and_mask(KeyValueCache& cache, const std::optional<IndicesIn>& past_of,
                          const std::optional<IndicesIn>& ends_of, const std::optional<MaskIn>& mask) {
  const auto lengths = [&](const std::optional<IndicesIn>& of) -> const std::int64_t* {
    if (!of) return nullptr;
    if (static_cast<std::int64_t>(of->size()) != cache.sequences) {
      throw std::invalid_argument("sequence: one length per sequence of a cache");
    }
    return of->data();
  };
  cache.past_of = lengths(past_of);
  cache.ends_of = lengths(ends_of);
  if (!mask) return;
  cache.mask = mask->data();
  cache.mask_sequences = size_of(*mask, 0);
  cache.mask_heads = size_of(*mask, 1);
  cache.mask_queries = size_of(*mask, 2);
  cache.mask_keys = size_of(*mask, 3);
}

}  // namespace

CacheRoom::CacheRoom(CacheOut keys, CacheOut values) : keys_(std::move(keys)), values_(std::move(values)) {
  if (!are_alike(keys_, values_, {0, 1, 2})) refuse_arrays();
  all_.keys = cache_place<float>(keys_);
  all_.values = cache_place<float>(values_);
  all_.past_keys = {all_.keys.data, all_.keys.sequence_stride, all_.keys.head_stride};
  all_.past_values = {all_.values.data, all_.values.sequence_stride, all_.values.head_stride};
  all_.sequences = size_of(keys_, 0);
  all_.heads = size_of(keys_, 1);
  all_.depth = size_of(keys_, 3);
  all_.value_depth = size_of(values_, 3);
}

KeyValueCache CacheRoom::cache(std::int64_t past, std::int64_t total) const {
  if (past < 0 || past > total || total > size_of(keys_, 2)) {
    throw std::invalid_argument("sequence: a cache has no room for the past and the new tokens");
  }
  KeyValueCache cache = all_;
  cache.past = past;
  cache.total = total;
  return cache;
}

KeyValueCache cache_of(const CacheSpec& spec) {
  if (const auto* const arrays = std::get_if<CacheArrays>(&spec)) {
    KeyValueCache cache = cache_of_arrays(*arrays);
    add_lengths_and_mask(cache, std::get<4>(*arrays), std::get<5>(*arrays), std::get<6>(*arrays));
    return cache;
  }
  const auto& [room, past, total, past_of, ends_of, mask] = std::get<RoomSpec>(spec);
  if (room == nullptr) throw std::invalid_argument("sequence: a cache is None");
  KeyValueCache cache = room->cache(past, total);
  add_lengths_and_mask(cache, past_of, ends_of, mask);
  return cache;
}

}  // namespace sift::cpu
