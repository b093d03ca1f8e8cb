#include "products/matmul.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "ops/reorder.h"

namespace sift::cpu {
namespace {

constexpr std::int64_t kSliceColumns = 1 << 16;
constexpr std::int64_t kChunks = 64;
// Multiply-adds below which waking the other threads costs more than they save.
constexpr std::int64_t kAlone = 1 << 14;

ConvOptions tokens_in_lanes(Activation activation) {
  ConvOptions options;
  options.activation = activation;
  options.layout = Layout::nchw_n16;
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
      bias_(std::move(bias)),
      activation_(activation),
      kernels_(kernels),
      weights_(std::move(weights)) {
  if (rows_ == 0 || columns_ == 0) throw std::invalid_argument("matmul: the weights are empty");
  if (!bias_.empty() && static_cast<std::int64_t>(bias_.size()) != rows_) {
    throw std::invalid_argument("matmul: one bias per row of the weights");
  }
  bias_.resize(static_cast<std::size_t>(rows_), 0.0F);
}

std::shared_ptr<const Matmul::Few> Matmul::make_few(const SparseWeights& weights) const {
  auto few = std::make_shared<Few>();
  for (std::int64_t first = 0; first < columns_; first += kSliceColumns) {
    Slice& slice = few->slices.emplace_back();
    slice.first = first;
    slice.starts.push_back(0);
    if (columns_ <= kSliceColumns) {
      slice.columns.reserve(static_cast<std::size_t>(nnz_));
      slice.values.reserve(static_cast<std::size_t>(nnz_));
    }
    for (std::int64_t row = 0; row < rows_; ++row) {
      const auto columns = weights.row_columns(row);
      const auto values = weights.row_values(row);
      for (std::size_t i = 0; i < columns.size(); ++i) {
        const std::int64_t column = std::int64_t{columns[i]} - first;
        if (column < 0 || column >= kSliceColumns) continue;
        slice.columns.push_back(static_cast<std::uint16_t>(column));
        slice.values.push_back(values[i]);
      }
      slice.starts.push_back(static_cast<std::uint32_t>(slice.values.size()));
    }
  }
  few->chunks.push_back(0);
  std::int64_t sum = 0;
  for (std::int64_t row = 0; row < rows_; ++row) {
    sum += static_cast<std::int64_t>(weights.row_values(row).size()) + 1;
    const auto cut = static_cast<std::int64_t>(few->chunks.size());
    if (cut < kChunks && sum * kChunks >= (nnz_ + rows_) * cut) few->chunks.push_back(row + 1);
  }
  if (few->chunks.back() != rows_) few->chunks.push_back(rows_);
  return few;
}

SparseWeights Matmul::unpack(const Few& few) const {
  SparseWeights::Builder builder(rows_, columns_, nnz_);
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows_); ++row) {
    for (const Slice& slice : few.slices) {
      for (std::size_t i = slice.starts[row]; i < slice.starts[row + 1]; ++i) {
        builder.add(static_cast<std::uint32_t>(slice.first) + slice.columns[i], slice.values[i]);
      }
    }
    builder.end_row();
  }
  return builder.take();
}

std::shared_ptr<const SparseWeights> Matmul::locked_source() const {
  if (weights_) return weights_;
  return few_ ? std::make_shared<const SparseWeights>(unpack(*few_)) : many_->source();
}

std::shared_ptr<const SparseWeights> Matmul::source() const {
  const std::lock_guard lock(mutex_);
  return locked_source();
}

std::shared_ptr<const Matmul::Few> Matmul::few() const {
  const std::lock_guard lock(mutex_);
  if (!few_) few_ = make_few(*locked_source());
  return few_;
}

std::shared_ptr<const Conv> Matmul::many() const {
  const std::lock_guard lock(mutex_);
  if (!many_) many_ = std::make_shared<const Conv>(locked_source(), bias_, tokens_in_lanes(activation_), kernels_);
  return many_;
}

bool Matmul::release_source() const {
  const std::lock_guard lock(mutex_);
  const bool many_packed = many_ && many_->release_source();
  if (!few_ && !many_packed) return false;
  if (!many_packed) many_.reset();
  weights_.reset();
  return true;
}

std::int64_t Matmul::weight_bytes() const {
  const std::lock_guard lock(mutex_);
  std::int64_t bytes = static_cast<std::int64_t>(bias_.size() * sizeof(float)) + (many_ ? many_->weight_bytes() : 0);
  if (!few_) return bytes;
  for (const Slice& slice : few_->slices) {
    bytes += static_cast<std::int64_t>(slice.starts.capacity() * sizeof(slice.starts[0]) +
                                       slice.columns.capacity() * sizeof(slice.columns[0]) +
                                       slice.values.capacity() * sizeof(slice.values[0]));
  }
  return bytes;
}

Shape Matmul::output_shape(const Shape& in) const {
  if (in.c != columns_ || in.h != 1 || in.w != 1) {
    throw std::invalid_argument("matmul: the input must be [m][columns of the weights]");
  }
  return {in.n, rows_, 1, 1};
}

void Matmul::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  const float* const second = others.second;
  const Shape out_shape = output_shape(shape);
  const std::int64_t m = shape.n;
  if (m == 0) return;
  if (m <= kLanes) return run_few(pool, m, in, second, out);
  Scratch& scratch = thread_scratch();
  float* const x = scratch.x.floats(static_cast<std::size_t>(element_count(shape, Layout::nchw_n16)));
  float* const y = scratch.y.floats(static_cast<std::size_t>(element_count(out_shape, Layout::nchw_n16)));
  const Reorder to_lanes(Layout::nchw, kernels_);
  to_lanes.run(pool, shape, in, nullptr, x);
  float* residual = nullptr;
  if (second != nullptr) {
    residual = scratch.second.floats(static_cast<std::size_t>(element_count(out_shape, Layout::nchw_n16)));
    to_lanes.run(pool, out_shape, second, nullptr, residual);
  }
  many()->run(pool, shape, x, residual, y);
  Reorder(Layout::nchw_n16, kernels_).run(pool, out_shape, y, nullptr, out);
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
  const std::shared_ptr<const Few> weights = few();
  const auto chunk = [&](std::int64_t begin, std::int64_t end) {
    StreamArgs args{};
    args.width = static_cast<std::uint32_t>(width);
    args.row_begin = static_cast<std::uint32_t>(begin);
    args.row_end = static_cast<std::uint32_t>(end);
    args.acc = acc;
    for (const Slice& slice : weights->slices) {
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
                              .repeats_b = false,
                              .scale = 1,
                              .shift = 0,
                              .out = to + begin,
                              .count = end - begin,
                              .activation = activation_});
      }
    }
  };
  if (nnz_ * width < kAlone) return chunk(0, rows_);
  const std::vector<std::int64_t>& chunks = weights->chunks;
  pool.parallel_for(static_cast<std::int64_t>(chunks.size()) - 1, [&](std::int64_t i) {
    chunk(chunks[static_cast<std::size_t>(i)], chunks[static_cast<std::size_t>(i) + 1]);
  });
}

}  // namespace sift::cpu
