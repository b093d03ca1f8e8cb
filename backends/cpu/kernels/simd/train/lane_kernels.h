// Arguments of the kernels that training needs beside products: normalization, activation, pooling and
// sums of tensors in NCHWn16.
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

// A position along an axis of windows, and the positions on the other side that windows join it to: of an output
// those of the input, of an input those of the output. Of `count` such positions and their taps, the first.
struct PoolTaps {
  std::int64_t place;  // floats from the first position
  std::int32_t tap;    // of the kernel, row-major
  std::int32_t count;
};

// From one of them to the next.
struct PoolSteps {
  std::int64_t place;
  std::int32_t tap;
};

// A row of blocks of 16 lanes.
struct PoolRow {
  PoolTaps row;
  PoolSteps row_steps;
  const PoolTaps* columns;  // [size]
  PoolSteps column_steps;
  std::int64_t size;
  bool non_temporal;  // stores of floats
};

// The tap of a window without pixels, whose maximum is minus infinity.
inline constexpr std::uint8_t kNoTap = 255;

// The maxima of windows, and the taps that they come from: the first of those that are equal, the last NaN.
struct MaxPoolArgs {
  PoolRow row;
  const float* x;  // a plane
  float* out;      // the row
  std::uint8_t* taps;
  const float* ahead;  // what is fetched meanwhile: rows of x that the next row needs as well
  std::int64_t ahead_blocks;
};

// dx = sum of dy of the windows whose maximum this pixel is.
struct MaxPoolGradientArgs {
  PoolRow row;
  const float* dy;           // a plane
  const std::uint8_t* taps;  // a plane
  float* dx;                 // the row
};

// A row of a channel that depthwise windows are summed for: out = sum of weight * x over the taps of each + bias, or
// the input's gradient, of which `x` is the output's.
struct DepthwiseArgs {
  PoolRow row;
  const float* x;       // a plane
  const float* weight;  // of the channel's taps, row-major
  float bias;
  float* out;  // the row
  bool adds;   // to what is there, without the bias
};

// Along an axis, the outputs whose window reads the input at one of its taps: the first of them, their number, and the
// input that the first one reads.
struct DepthwiseReach {
  std::int64_t first;
  std::int64_t count;
  std::int64_t input;
};

// sums[tap] += dy * x over the pixels of a plane, each lane by itself.
struct DepthwiseGradientArgs {
  const float* x;                 // a plane
  const float* dy;                // a plane
  const DepthwiseReach* rows;     // [kernel_h]
  const DepthwiseReach* columns;  // [kernel_w]
  std::int64_t kernel_h;
  std::int64_t kernel_w;
  std::int64_t stride_h;
  std::int64_t stride_w;
  std::int64_t x_pitch;  // floats of a row
  std::int64_t dy_pitch;
  float* sums;  // [taps][16]
};

// The maxima of windows of z = (x - mean) * scale + shift, none below zero if `relu`. Every window has pixels.
struct BatchNormPoolArgs {
  PoolRow row;
  const float* x;  // a plane
  float mean;
  float scale;
  float shift;
  bool relu;
  bool of_batch;       // whether mean and scale come from all of x
  float* out;          // the row
  float* chosen;       // the x that each maximum comes from
  std::uint8_t* taps;  // of the kernel; kNoTap where ReLU lets no gradient pass
};

// dx = scale * (dz - dz_mean - (x - mean) * slope), with dz the sum of dy of the windows whose maximum this pixel is;
// zero in the lanes that belong to no image.
struct BatchNormPoolGradientArgs {
  PoolRow row;
  const float* dy;           // a plane
  const std::uint8_t* taps;  // a plane
  const float* x;            // the row
  int lanes;
  float mean;
  float scale;
  float dz_mean;
  float slope;
  float* dx;  // the row
};

// Layer normalization of 16 tokens, [channels][16]: out = (x - mean) * inverse_std * weight + bias. In lanes that
// belong to no token, mean and inverse_std are zero. Without a mean, as RMS normalization has it, that is zero.
struct LayerNormArgs {
  const float* x;
  const float* weight;  // [channels]; null: 1
  const float* bias;    // [channels]; null: 0
  float* out;           // may be x
  float* mean;          // [16]; null: none
  float* inverse_std;   // [16]
  std::int64_t channels;
  int lanes;
  float epsilon;
  bool non_temporal;
};

// With g = dy * weight and z = (x - mean) * inverse_std: dx = inverse_std * (g - mean of g - z * mean of g z), the
// means over channels; zero in lanes that belong to no token.
struct LayerNormGradientArgs {
  const float* dy;
  const float* x;
  const float* weight;       // [channels]; null: 1
  const float* mean;         // [16]; null: none
  const float* inverse_std;  // [16]
  float* dx;                 // may be dy or x
  float* sums;               // [channels][2][16]: dy z and dy are added; null: not wanted
  std::int64_t channels;
  int lanes;
  bool non_temporal;
};

// relu; leaky: a is the slope up to zero; clip: to [a, b]; hard_sigmoid: clip(a x + b, 0, 1); hard_swish:
// x clip(x/6 + 1/2, 0, 1); swish: x sigmoid(a x); gelu: by erf; gelu_tanh: by tanh.
enum class LaneActivationKind : std::uint8_t {
  relu,
  leaky,
  clip,
  hard_sigmoid,
  hard_swish,
  sigmoid,
  tanh,
  swish,
  gelu,
  gelu_tanh
};

struct LaneActivation {
  LaneActivationKind kind;
  float a = 0;
  float b = 0;
};

// out = f(x), or dy f'(x) if there is dy.
struct LaneActivationArgs {
  LaneActivation function;
  const float* x;
  const float* dy;     // null: the value is wanted
  float* out;          // may be x or dy
  std::int64_t count;  // of floats, a multiple of 16
  bool non_temporal;
};

struct LaneKernels {
  void (*add_moments)(const float* x, std::int64_t blocks, int lanes, Moments& total);
  void (*batch_norm)(BatchNormArgs);
  void (*batch_norm_sums)(const BatchNormGradientArgs&, GradientSums& total);
  void (*batch_norm_gradient)(BatchNormGradientArgs);
  // sums[c] += the sum of each run, for runs one after the other: x [channels][blocks][16]. Sums and what rounding
  // took from them, [channels][2][16], aligned to 64 bytes.
  void (*add_runs)(const float* x, std::int64_t channels, std::int64_t blocks, int lanes, float* sums);
  void (*max_pool)(MaxPoolArgs);
  void (*max_pool_gradient)(MaxPoolGradientArgs);
  void (*depthwise)(DepthwiseArgs);
  void (*depthwise_gradient)(const DepthwiseGradientArgs&);
  void (*batch_norm_pool)(BatchNormPoolArgs);
  void (*batch_norm_pool_gradient)(BatchNormPoolGradientArgs);
  void (*layer_norm)(LayerNormArgs);
  void (*layer_norm_gradient)(LayerNormGradientArgs);
  void (*activation)(LaneActivationArgs);
};

}  // namespace sift::cpu
