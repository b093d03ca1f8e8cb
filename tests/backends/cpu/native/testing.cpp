#include "testing.h"

#include <cstdio>

#include "ops/reorder.h"

namespace sift::cpu {
namespace {

int failures = 0;

}  // namespace

void check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  ++failures;
}

int failure_count() { return failures; }

Tensor random_tensor(Random& random, std::int64_t size) {
  Tensor tensor(size);
  for (std::int64_t i = 0; i < size; ++i) tensor[i] = random.value();
  return tensor;
}

Tensor random_lanes(Random& random, const Shape& shape) {
  const std::int64_t group = shape.c * shape.h * shape.w * kLanes;
  Tensor tensor = random_tensor(random, element_count(shape, Layout::nchw_n16));
  for (std::int64_t i = 0; i < ceil_div(shape.n, kLanes) * group; ++i) {
    if (i / group * kLanes + i % kLanes >= shape.n) tensor[i] = 0;
  }
  return tensor;
}

Tensor run(const Op& op, ThreadPool& pool, const KernelTable& kernels, const Shape& shape, Tensor& in, Tensor* second) {
  const Shape out_shape = op.output_shape(shape);
  Tensor out(element_count(out_shape, Layout::nchw));
  if (op.input_layout() == Layout::nchw) {
    op.run(pool, shape, in.data(), second == nullptr ? nullptr : second->data(), out.data());
    return out;
  }
  const Reorder to(Layout::nchw, kernels);
  Tensor blocks(element_count(shape, Layout::nchw_n16));
  to.run(pool, shape, in.data(), nullptr, blocks.data());
  Tensor other(second == nullptr ? 0 : element_count(out_shape, Layout::nchw_n16));
  if (second != nullptr) to.run(pool, out_shape, second->data(), nullptr, other.data());
  Tensor result(element_count(out_shape, Layout::nchw_n16));
  op.run(pool, shape, blocks.data(), second == nullptr ? nullptr : other.data(), result.data());
  Reorder(Layout::nchw_n16, kernels).run(pool, out_shape, result.data(), nullptr, out.data());
  return out;
}

ConvGeometry random_geometry(Random& random) {
  ConvGeometry g;
  g.groups = random.between(1, 2);
  g.kernel_h = random.between(1, 4);
  g.kernel_w = random.between(1, 4);
  g.stride_h = random.between(1, 3);
  g.stride_w = random.between(1, 3);
  g.dilation_h = random.between(1, 2);
  g.dilation_w = random.between(1, 2);
  g.pad_top = random.between(0, 2);
  g.pad_left = random.between(0, 2);
  g.pad_bottom = random.between(0, 2);
  g.pad_right = random.between(0, 2);
  return g;
}

}  // namespace sift::cpu
