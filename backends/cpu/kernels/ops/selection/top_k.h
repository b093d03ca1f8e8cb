// TopK.
#pragma once

#include <cstdint>
#include <vector>

#include "base/op.h"
#include "simd/kernel_table.h"
#include "simd/views/kernel_table.h"

namespace sift::cpu {

// The places among the channels of the k largest values of each row, or of each pixel of an image, or of the k
// smallest: integers [n][k][h][w], from the first in rank to the last. Of equal values, the one with the lower place
// ranks first. NaN is larger than any number, as onnxruntime 1.32 and numpy have it.
class TopK final : public Op {
 public:
  // Throws std::invalid_argument if k is not positive.
  TopK(std::int64_t k, bool is_least, const KernelTable& kernels);

  // Throws std::invalid_argument if there are fewer channels than k, or 2**31.
  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override { return Layout::nchw; }
  Layout output_layout() const override { return Layout::integers; }
  OtherSizes other_sizes(const Shape&) const override { return {}; }
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;

 private:
  void select(const float* row, std::int64_t count, std::vector<std::uint64_t>& ranks) const;
  std::int64_t next(const float* row, std::int64_t place, std::int64_t count, std::uint64_t last) const;
  void insert(const float* row, std::int64_t count, std::vector<std::uint64_t>& ranks) const;
  void collect(const float* row, std::int64_t count, std::vector<std::uint64_t>& ranks) const;

  std::int64_t k_;
  bool is_least_;
  const ViewKernels& kernels_;
};

}  // namespace sift::cpu
