// Caches as Python passes them to a run of a sequence.
#pragma once

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <variant>

#include "base/key_value_cache.h"
#include "bind/binding_types.h"

namespace sift::cpu {

using CacheIn = nanobind::ndarray<const float, nanobind::ndim<4>, nanobind::device::cpu>;
using CacheOut = nanobind::ndarray<float, nanobind::ndim<4>, nanobind::device::cpu>;
using MaskIn = nanobind::ndarray<const float, nanobind::ndim<4>, nanobind::c_contig, nanobind::device::cpu>;

// Keys and values that have room for more tokens than there are. Their arrays are looked at once, and not in each of
// the runs that append to them.
class CacheRoom {
 public:
  // Throws std::invalid_argument if they do not fit each other, or rows of a head do not follow each other.
  CacheRoom(CacheOut keys, CacheOut values);

  // Of a run with `past` tokens before it and `total` after it; throws std::invalid_argument where there are not as
  // many.
  KeyValueCache cache(std::int64_t past, std::int64_t total) const;

 private:
  CacheOut keys_;
  CacheOut values_;
  KeyValueCache all_;
};

// Past keys and values, those after the run; the tokens of each sequence's past, those that count, and a mask.
using CacheArrays = std::tuple<CacheIn, CacheIn, std::optional<CacheOut>, std::optional<CacheOut>,
                               std::optional<IndicesIn>, std::optional<IndicesIn>, std::optional<MaskIn>>;
// A room, tokens before and after the run; and as above.
using RoomSpec = std::tuple<std::shared_ptr<CacheRoom>, std::int64_t, std::int64_t, std::optional<IndicesIn>,
                            std::optional<IndicesIn>, std::optional<MaskIn>>;
using CacheSpec = std::variant<RoomSpec, CacheArrays>;

// Throws std::invalid_argument for arrays that do not fit each other.
KeyValueCache cache_of(const CacheSpec& spec);

}  // namespace sift::cpu
