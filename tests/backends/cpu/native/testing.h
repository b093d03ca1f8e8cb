// What the native tests share: checks that are counted, random inputs, and tensors of exactly their size, so that a
// sanitizer sees a lane too far.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "simd/kernel_table.h"

namespace sift::cpu {

// Prints and counts failures.
void check(bool holds, const std::string& what);
int failure_count();

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  float value() { return std::uniform_real_distribution<float>(-1, 1)(engine_); }
  bool chance(double probability) { return std::uniform_real_distribution<double>(0, 1)(engine_) < probability; }

 private:
  std::mt19937 engine_;
};

// Exactly as large as the tensor: the sanitizer guards what lies behind it.
class Tensor {
 public:
  explicit Tensor(std::int64_t size)
      : memory_(static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>((size + 15) / 16 * 64)))),
        size_(size) {
    std::fill(data(), data() + size, std::numeric_limits<float>::quiet_NaN());
  }
  float* data() { return memory_.get() + (size_ + 15) / 16 * 16 - size_; }  // ends where the memory ends
  float& operator[](std::int64_t i) { return data()[i]; }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Free> memory_;
  std::int64_t size_;
};

Tensor random_tensor(Random& random, std::int64_t size);
// In NCHWn16, and zero in lanes that belong to no image.
Tensor random_lanes(Random& random, const Shape& shape);
ConvGeometry random_geometry(Random& random);

// Runs an operator in its layout on NCHW tensors.
Tensor run(const Op& op, ThreadPool& pool, const KernelTable& kernels, const Shape& shape, Tensor& in, Tensor* second);

}  // namespace sift::cpu
