// Arguments of the kernels that training needs beside products: normalization, pooling and sums of tensors in NCHWn16.
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

// Of 16 tokens, each in a lane of its own: x [channels][16].
struct LayerNormArgs {
  const float* x;
  const float* weight;  // [channels]; null: 1
  const float* bias;    // [channels]; null: 0
  float* out;
  float* mean;         // [16]
  float* inverse_std;  // [16]
  std::int64_t channels;
  float epsilon;
};

struct LayerNormGradientArgs {
  const float* dy;
  const float* x;
  const float* weight;  // null: 1
  const float* mean;
  const float* inverse_std;
  float* dx;            // may be dy
  float* dweight_sums;  // [channels][16], added to; null: not wanted
  float* dbias_sums;    // the same
  std::int64_t channels;
  int lanes;
};

// Tap number `tap` of a window at position `at`, along one of the two axes.
struct WindowTap {
  std::int32_t at;
  std::int32_t tap;
};

// Taps of each position: those from starts[i] to starts[i + 1] belong to position i.
struct WindowTaps {
  const std::int32_t* starts;
  const WindowTap* taps;
};

// A channel of 16 images. The tap of the maximum is y * kernel_w + x.
struct MaxPoolArgs {
  const float* in;  // x [h][w][16]; of the gradient: dy [out_h][out_w][16]
  float* out;       // [out_h][out_w][16]; of the gradient: dx [h][w][16]
  std::uint8_t* argmax;
  WindowTaps rows;  // of output rows: input rows; of the gradient: the other way round
  WindowTaps columns;
  std::int64_t in_w;
  std::int64_t out_h;
  std::int64_t out_w;
  std::int32_t kernel_w;
  int lanes;
};

struct LaneKernels {
  void (*add_moments)(const float* x, std::int64_t blocks, int lanes, Moments& total);
  void (*batch_norm)(BatchNormArgs);
  void (*batch_norm_sums)(const BatchNormGradientArgs&, GradientSums& total);
  void (*batch_norm_gradient)(BatchNormGradientArgs);
  // sums[c] += the sum of each run, for runs one after the other: x [channels][blocks][16]. Sums and what rounding
  // took from them, [channels][2][16], aligned to 64 bytes.
  void (*add_runs)(const float* x, std::int64_t channels, std::int64_t blocks, int lanes, float* sums);
  void (*layer_norm)(LayerNormArgs);
  void (*layer_norm_gradient)(LayerNormGradientArgs);
  void (*max_pool)(MaxPoolArgs);
  void (*max_pool_gradient)(MaxPoolArgs);
};

}  // namespace sift::cpu
