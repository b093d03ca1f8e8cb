// Arguments of the kernels that training needs beside products: normalization and sums of tensors in NCHWn16.
//
// A run is what one group of 16 images has of a channel: `blocks` pixels of 16 lanes each, aligned to 64 bytes. The
// first `lanes` of them belong to images; the others hold any finite values in what is read, and are not counted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sift::cpu {

// Number, mean, and sum of squared differences from the mean.
struct Moments {
  double count = 0;
  double mean = 0;
  double squares = 0;
};

// out = (x - mean) * scale + shift + residual, then without what is below zero if `relu`.
struct BatchNormArgs {
  const float* x;
  const float* residual;  // null: none
  float* out;
  std::int64_t blocks;
  float mean;
  float scale;
  float shift;
  bool relu;
  bool non_temporal;
};

// Where the gradient passes: everywhere, where `out` is above zero, or where the result for x is.
enum class ReluMask : std::uint8_t { none, from_out, from_x };

// dz = dy where `relu` lets it pass, else zero.
struct BatchNormGradientArgs {
  const float* dy;
  const float* x;
  const float* out;  // of from_out
  std::int64_t blocks;
  int lanes;
  ReluMask relu;
  float mean;
  float scale;
  float shift;  // of from_x
  // dx = scale * (dz - dz_mean - (x - mean) * slope); zero in the lanes that belong to no image.
  float dz_mean;
  float slope;
  float* dx;         // may be dy
  float* dresidual;  // dz; null: not wanted; may be dy
  bool non_temporal;
};

// Sums of dz and of dz * (x - mean).
struct GradientSums {
  double dz = 0;
  double dz_x = 0;
};

struct LaneKernels {
  void (*add_moments)(const float* x, std::int64_t blocks, int lanes, Moments& total);
  void (*batch_norm)(BatchNormArgs);
  void (*batch_norm_sums)(const BatchNormGradientArgs&, GradientSums& total);
  void (*batch_norm_gradient)(BatchNormGradientArgs);
  // sums[c] += the sum of each run, for runs one after the other: x [channels][blocks][16]. Sums and what rounding
  // took from them, [channels][2][16], aligned to 64 bytes.
  void (*add_runs)(const float* x, std::int64_t channels, std::int64_t blocks, int lanes, float* sums);
};

}  // namespace sift::cpu
