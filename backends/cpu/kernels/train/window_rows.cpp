#include "train/window_rows.h"

#include <algorithm>
#include <numeric>

namespace sift::cpu {
namespace {

struct Axis {
  std::int64_t in;
  std::int64_t out;
  std::int64_t kernel;
  std::int64_t stride;
  std::int64_t dilation;
  std::int64_t pad;
};

// Places in floats, that positions are apart on the other side; taps of the whole kernel.
Joined scaled(Joined joined, std::int64_t floats, std::int64_t taps) {
  for (PoolTaps& position : joined.positions) {
    position.place *= floats;
    position.tap *= static_cast<std::int32_t>(taps);
  }
  joined.steps.place *= floats;
  joined.steps.tap *= static_cast<std::int32_t>(taps);
  return joined;
}

void join(PoolTaps& position, std::int64_t place, std::int64_t tap) {
  if (position.count++ == 0) {
    position.place = place;
    position.tap = static_cast<std::int32_t>(tap);
  }
}

Joined inputs_of_outputs(const Axis& axis) {
  Joined joined{std::vector<PoolTaps>(static_cast<std::size_t>(axis.out)), {std::min(axis.dilation, axis.in), 1}};
  for (std::int64_t out = 0; out < axis.out; ++out) {
    for (std::int64_t tap = 0; tap < axis.kernel; ++tap) {
      const std::int64_t in = out * axis.stride - axis.pad + tap * axis.dilation;
      if (in >= 0 && in < axis.in) join(joined.positions[static_cast<std::size_t>(out)], in, tap);
    }
  }
  return joined;
}

// Of the taps that reach an input, every stride / gcd(stride, dilation)-th does from a whole number of strides away.
Joined outputs_of_inputs(const Axis& axis) {
  const std::int64_t common = std::gcd(axis.stride, axis.dilation);
  Joined joined{std::vector<PoolTaps>(static_cast<std::size_t>(axis.in)),
                {-std::min(axis.dilation / common, axis.out),
                 static_cast<std::int32_t>(std::min(axis.stride / common, axis.kernel))}};
  for (std::int64_t in = 0; in < axis.in; ++in) {
    for (std::int64_t tap = 0; tap < axis.kernel; ++tap) {
      const std::int64_t from = in + axis.pad - tap * axis.dilation;
      if (from >= 0 && from % axis.stride == 0 && from / axis.stride < axis.out) {
        join(joined.positions[static_cast<std::size_t>(in)], from / axis.stride, tap);
      }
    }
  }
  return joined;
}

Axis rows_of(const ConvGeometry& g, const Shape& in, const Shape& out) {
  return {in.h, out.h, g.kernel_h, g.stride_h, g.dilation_h, g.pad_top};
}
Axis columns_of(const ConvGeometry& g, const Shape& in, const Shape& out) {
  return {in.w, out.w, g.kernel_w, g.stride_w, g.dilation_w, g.pad_left};
}

}  // namespace

WindowRows WindowRows::of_outputs(const ConvGeometry& geometry, const Shape& in, const Shape& out) {
  return {scaled(inputs_of_outputs(rows_of(geometry, in, out)), in.w * kLanes, geometry.kernel_w),
          scaled(inputs_of_outputs(columns_of(geometry, in, out)), kLanes, 1)};
}

WindowRows WindowRows::of_inputs(const ConvGeometry& geometry, const Shape& in, const Shape& out) {
  return {scaled(outputs_of_inputs(rows_of(geometry, in, out)), out.w * kLanes, geometry.kernel_w),
          scaled(outputs_of_inputs(columns_of(geometry, in, out)), kLanes, 1)};
}

bool WindowRows::all_joined() const {
  const auto joined = [](const PoolTaps& position) { return position.count > 0; };
  return std::all_of(rows.positions.begin(), rows.positions.end(), joined) &&
         std::all_of(columns.positions.begin(), columns.positions.end(), joined);
}

}  // namespace sift::cpu
