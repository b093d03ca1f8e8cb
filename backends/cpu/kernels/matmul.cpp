#include "matmul.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "aligned_buffer.h"
#include "reorder.h"
#include "thread_pool.h"

namespace sift::cpu {
namespace {

constexpr std::int64_t kSliceColumns = 1 << 16;
constexpr std::int64_t kChunks = 64;
// Multiply-adds below which waking the other threads costs more than they save.
constexpr std::int64_t kAlone = 1 << 14;

ConvOptions tokens_in_lanes(Activation activation) {
  ConvOptions options;
  options.activation = activation;
  options.layout = Layout::images16;
  return options;
}

// Buffers of the calling thread. Those of `run_few` are read by the others while they work for it.
struct Scratch {
  AlignedBuffer x;
  AlignedBuffer y;
  AlignedBuffer second;
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

}  // namespace

Matmul::Matmul(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias, Activation activation,
               const KernelTable& kernels)
    : rows_(weights->rows()),
      columns_(weights->columns()),
      nnz_(weights->nnz()),
      bias_(bias),
      activation_(activation),
      kernels_(kernels),
      many_(weights, std::move(bias), tokens_in_lanes(activation), kernels) {
  bias_.resize(static_cast<std::size_t>(rows_), 0.0F);
  for (std::int64_t first = 0; first < columns_; first += kSliceColumns) {
    Slice& slice = slices_.emplace_back();
    slice.first = first;
    slice.starts.push_back(0);
    for (std::int64_t row = 0; row < rows_; ++row) {
      const auto columns = weights->row_columns(row);
      const auto values = weights->row_values(row);
      for (std::size_t i = 0; i < columns.size(); ++i) {
        const std::int64_t column = std::int64_t{columns[i]} - first;
        if (column < 0 || column >= kSliceColumns) continue;
        slice.columns.push_back(static_cast<std::uint16_t>(column));
        slice.values.push_back(values[i]);
      }
      slice.starts.push_back(static_cast<std::uint32_t>(slice.values.size()));
    }
  }
  chunks_.push_back(0);
  std::int64_t sum = 0;
  for (std::int64_t row = 0; row < rows_; ++row) {
    sum += static_cast<std::int64_t>(weights->row_values(row).size()) + 1;
    const auto cut = static_cast<std::int64_t>(chunks_.size());
    if (cut < kChunks && sum * kChunks >= (nnz_ + rows_) * cut) chunks_.push_back(row + 1);
  }
  if (chunks_.back() != rows_) chunks_.push_back(rows_);
}

Shape Matmul::output_shape(const Shape& in) const {
  if (in.c != columns_ || in.h != 1 || in.w != 1) {
    throw std::invalid_argument("matmul: the input must be [m][columns of the weights]");
  }
  return {in.n, rows_, 1, 1};
}

void Matmul::run(ThreadPool& pool, const Shape& shape, const float* in, const float* second, float* out) const {
  const Shape out_shape = output_shape(shape);
  const std::int64_t m = shape.n;
  if (m == 0) return;
  if (m <= kLanes) return run_few(pool, m, in, second, out);
  Scratch& scratch = thread_scratch();
  float* const x = scratch.x.floats(static_cast<std::size_t>(element_count(shape, Layout::images16)));
  float* const y = scratch.y.floats(static_cast<std::size_t>(element_count(out_shape, Layout::images16)));
  const Reorder to_lanes(Layout::planes, kernels_);
  to_lanes.run(pool, shape, in, nullptr, x);
  float* residual = nullptr;
  if (second != nullptr) {
    residual = scratch.second.floats(static_cast<std::size_t>(element_count(out_shape, Layout::images16)));
    to_lanes.run(pool, out_shape, second, nullptr, residual);
  }
  many_.run(pool, shape, x, residual, y);
  Reorder(Layout::images16, kernels_).run(pool, out_shape, y, nullptr, out);
}

void Matmul::run_few(ThreadPool& pool, std::int64_t m, const float* in, const float* second, float* out) const {
  const std::int64_t width = m == 1 ? 1 : m <= 4 ? 4 : m <= 8 ? 8 : 16;
  Scratch& scratch = thread_scratch();
  const float* x = in;
  if (width > 1) {
    float* const interleaved = scratch.x.floats(static_cast<std::size_t>(columns_ * width));
    for (std::int64_t column = 0; column < columns_; ++column) {
      for (std::int64_t row = 0; row < width; ++row) {
        interleaved[column * width + row] = row < m ? in[row * columns_ + column] : 0.0F;
      }
    }
    x = interleaved;
  }
  float* const acc = scratch.y.floats(static_cast<std::size_t>(rows_ * width));
  const auto chunk = [&](std::int64_t begin, std::int64_t end) {
    StreamArgs args{};
    args.width = static_cast<std::uint32_t>(width);
    args.row_begin = static_cast<std::uint32_t>(begin);
    args.row_end = static_cast<std::uint32_t>(end);
    args.acc = acc;
    for (const Slice& slice : slices_) {
      args.x = x + slice.first * width;
      args.starts = slice.starts.data();
      args.columns = slice.columns.data();
      args.values = slice.values.data();
      args.bias = slice.first == 0 ? bias_.data() : nullptr;
      kernels_.stream(args);
    }
    for (std::int64_t row = 0; row < m; ++row) {
      float* const to = out + row * rows_;
      const float* const residual = second == nullptr ? nullptr : second + row * rows_;
      for (std::int64_t i = begin; i < end; ++i) {
        to[i] = acc[i * width + row] + (residual == nullptr ? 0.0F : residual[i]);
      }
      if (activation_.kind != ActivationKind::none) {
        kernels_.elementwise({.kind = BinaryKind::first,
                              .a = to + begin,
                              .b = nullptr,
                              .scale = 1,
                              .shift = 0,
                              .out = to + begin,
                              .count = end - begin,
                              .activation = activation_});
      }
    }
  };
  if (nnz_ * width < kAlone) return chunk(0, rows_);
  pool.parallel_for(static_cast<std::int64_t>(chunks_.size()) - 1, [&](std::int64_t i) {
    chunk(chunks_[static_cast<std::size_t>(i)], chunks_[static_cast<std::size_t>(i) + 1]);
  });
}

}  // namespace sift::cpu
