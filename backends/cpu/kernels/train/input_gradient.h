// The gradient of a convolution's input as convolutions of the gradient of its output.
//
// Input pixel y of an axis meets output (y + pad - k * dilation) / stride through tap k where that is whole. Which taps
// these are depends on (y mod stride): a phase. A phase's taps are evenly spaced, and its pixels form a grid, so that
// it is a convolution of stride one, with the taps in reverse order and with rows and columns of the weights exchanged.
#pragma once

#include <vector>

#include "base/conv_geometry.h"
#include "conv/tile_positions.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

struct GradientPhase {
  ConvGeometry geometry;
  OutputGrid grid;  // without the tensor's size
  SparseWeights weights;
};

// The phases that have weights. The values of `weights` are only moved.
std::vector<GradientPhase> gradient_phases(const SparseWeights& weights, const ConvGeometry& geometry);

}  // namespace sift::cpu
