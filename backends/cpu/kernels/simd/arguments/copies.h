// Arguments of kernels that copy lanes: into panels, from sums, between layouts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/activation.h"

namespace sift::cpu {

// Lanes that are copied into a panel. All channels have the same entries.
struct Gather {
  std::ptrdiff_t source;  // floats from the channel's first
  std::uint32_t target;   // floats from the channel's part of the panel
  std::uint32_t mask;     // a bit per lane, adjacent; other lanes keep their values
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
  std::uint32_t lanes;    // number of lanes that are stored, from the first one on
};

struct EpilogueArgs {
  const Scatter* entries;
  std::uint32_t count;
  const float* acc;
  std::ptrdiff_t acc_stride;  // floats per accumulator row
  const float* residual;      // null: none
  float* out;
  std::ptrdiff_t out_stride;   // floats from one output channel to the next, of residual too
  const std::uint16_t* order;  // [rows], the rows of acc, out and residual; null: the first ones
  std::uint32_t rows;
  Activation activation;
  bool non_temporal;  // stores whole blocks non-temporally; all addresses are then aligned
};

// Adjacent lanes of a block whose sources are adjacent floats.
struct SourceRun {
  std::int64_t source;  // floats, of the first of them
  std::int32_t lane;    // the first one
  std::int32_t count;
};

// out[c out_step + lane] = in[source of the lane + channels[c]] for the lanes of the runs; others keep their values.
struct RearrangeArgs {
  const float* in;
  const SourceRun* runs;
  std::int64_t run_count;        // up to 16 runs of at least one lane
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

// Copies rows of `width` floats.
struct CopyRowsArgs {
  const float* from;
  std::ptrdiff_t from_pitch;  // floats from one row to the next
  float* to;
  std::ptrdiff_t to_pitch;
  std::int64_t rows;
  std::int64_t width;
};

}  // namespace sift::cpu
