// Prefetching of the input of several tiles at once, for images in lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/prefetcher.h"
#include "conv/conv_job.h"
#include "conv/tiling.h"

namespace sift::cpu {

// Whether tiles are in groups, of neighbours in a row, that prefetch the input of the next group. A tile of a few
// pixels reads as many lines of each channel, which are far from those of the next one, and a core waits for each line
// then. Long runs come three times as fast, because the processor itself asks for more lines.
bool prefetches_in_runs(const TilingProblem& problem, const Tiling& tiling, const ConvTensors& tensors);

// A part of the next group's input, for slice `slice` of `slices` of the tile at `place`: the tiles of a group prefetch
// all of it together. None if no group follows. `places` are the caller's memory for those of a channel.
std::optional<Prefetcher> input_ahead(const ConvJob& job, const ConvTile& place, std::int64_t slice,
                                      std::int64_t slices, const float* in, std::vector<std::ptrdiff_t>& places);

}  // namespace sift::cpu
