// Lanes that are copied: into panels, out of sums, from one layout to another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/activation.h"

namespace sift::cpu {

// Lanes copied into a panel. Entries are the same for every channel.
struct Gather {
  std::ptrdiff_t source;  // floats from the channel's first
  std::uint32_t target;   // floats from the channel's part of the panel
  std::uint32_t mask;     // bit per lane, adjacent; the lanes left out stay as they are
};

// Copies `count` entries for each of `channels` channels. Lane l of an entry comes from source + l * lane_stride.
struct GatherArgs {
  const Gather* entries;
  std::uint32_t count;
  std::uint32_t width;  // lanes per entry: 16, 8 or 4
  std::uint32_t lane_stride;
  const float* source;
  std::ptrdiff_t source_stride;  // floats from one channel to the next
  float* target;
  std::ptrdiff_t target_stride;
  std::uint32_t channels;
};

struct Scatter {
  std::ptrdiff_t target;  // floats from the output channel's first
  std::uint32_t source;   // floats from the start of the accumulator row
  std::uint32_t lanes;    // this many, from the first on, are stored
};

struct EpilogueArgs {
  const Scatter* entries;
  std::uint32_t count;
  const float* acc;
  std::ptrdiff_t acc_stride;  // floats per accumulator row
  const float* residual;      // null: none
  float* out;
  std::ptrdiff_t out_stride;   // floats from one output channel to the next, of residual too
  const std::uint16_t* order;  // [rows], which rows of acc, out and residual; null: the first ones
  std::uint32_t rows;
  Activation activation;
  bool non_temporal;  // stores of whole blocks; all places are aligned then
};

// Adjacent lanes of a block that come from adjacent floats.
struct SourceRun {
  std::int64_t source;  // floats, of the first of them
  std::int32_t lane;    // the first one
  std::int32_t count;
};

// out[c out_step + lane] = in[source of the lane + channels[c]], for the lanes of the runs; others keep their values.
struct RearrangeArgs {
  const float* in;
  const SourceRun* runs;
  std::int64_t run_count;        // up to 16, of at least a lane each
  const std::int64_t* channels;  // floats from a lane's source
  std::int64_t channel_count;
  bool channels_adjacent;
  float* out;
  std::ptrdiff_t out_step;
};

// Blocks of 16 floats, aligned to 64 bytes; steps, in floats, are from one to the next.
struct BlockCopy {
  const float* from;  // null: zeros
  float* to;
  std::int64_t count;
  std::ptrdiff_t from_step;
  std::ptrdiff_t to_step;
};

}  // namespace sift::cpu
