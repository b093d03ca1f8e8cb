// Windows over one to three channels, as first layers have them: taps share quads, of which no byte is left over.
#pragma once

#include <cstdint>

#include "int8/quad_weights.h"

namespace sift::cpu {

// Quads that the taps of such a window take together; see simd/int8/share.h for what is where.
std::int64_t shared_quads(std::int64_t taps, std::int64_t channels);

// The same weights as those of a product of as many quads. `weights` have fewer than four channels.
QuadWeights with_shared_taps(const QuadWeights& weights);

}  // namespace sift::cpu
