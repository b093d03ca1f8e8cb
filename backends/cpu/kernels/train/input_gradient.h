// The gradient of a convolution's input as convolutions of the gradient of its output.
//
// Along an axis, tap k connects input pixel y with output (y + pad - k * dilation) / stride, if this is an integer.
// These taps depend on (y mod stride), the phase. The taps of a phase are evenly spaced, and its pixels form a grid. A
// phase is therefore a convolution of stride one, with reversed taps and with rows and columns of the weights
// exchanged.
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

// The phases that have weights. Values of `weights` are only moved, never computed with.
std::vector<GradientPhase> gradient_phases(const SparseWeights& weights, const ConvGeometry& geometry);

}  // namespace sift::cpu
