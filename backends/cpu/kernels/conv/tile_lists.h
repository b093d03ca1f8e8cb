// Where a tile's operands come from and where its outputs go.
#pragma once

#include <cstddef>
#include <vector>

#include "conv/conv_job.h"
#include "conv/tile_input.h"

namespace sift::cpu {

struct TileLists {
  TileInput input;
  std::vector<Scatter> scatters;
};

// Lists of another tile of the same layer, perhaps: how far this one's places are from those that are listed.
struct ListedTile {
  const TileLists& lists;
  std::ptrdiff_t in;  // floats
  std::ptrdiff_t out;
};

// In memory of the calling thread, until it lists another tile. All tiles that lie inside of the image, with what they
// read, have the same lists, which are kept from one to the next: where channels are few, to list takes longer than to
// copy.
ListedTile list_tile(const ConvJob& job, const ConvTile& place);

}  // namespace sift::cpu
