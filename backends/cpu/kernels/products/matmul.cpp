#include "products/matmul.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "ops/reorder.h"

namespace sift::cpu {
namespace {

// Multiply-adds below which waking the other threads costs more than they save.
constexpr std::int64_t kAlone = 1 << 14;

// Buffers of the calling thread. They are read by the others while they work for it.
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

// Up to 16 rows of x.
struct Matmul::Few {
  std::int64_t m;
  const float* x;       // as the weights' form wants it
  std::int64_t width;   // of lists: rows of x that lie interleaved
  float* sums;          // of lists: [rows][width]
  PackedRowsArgs args;  // of the other forms
};

Matmul::Matmul(std::shared_ptr<const PackedRows> weights, std::vector<float> bias, const MatmulOptions& options,
               const KernelTable& kernels)
    : weights_(std::move(weights)),
      owns_weights_(false),
      bias_(std::move(bias)),
      options_(options),
      kernels_(kernels),
      packed_kernels_(packed_row_kernels(kernels, options.extended)) {
  const std::int64_t rows = weights_->rows();
  if (!bias_.empty() && static_cast<std::int64_t>(bias_.size()) != rows) {
    throw std::invalid_argument("matmul: one bias per row of the weights");
  }
  bias_.resize(static_cast<std::size_t>(ceil_div(rows, 4) * 4), 0.0F);
}

Matmul::Matmul(const SparseWeights& weights, std::vector<float> bias, Activation activation, const KernelTable& kernels)
    : Matmul(
          std::make_shared<const PackedRows>(PackedRows::pack(weights, ValueType::float32, {}, kernels.vec_bytes > 16)),
          std::move(bias), {.activation = activation}, kernels) {
  owns_weights_ = true;
}

std::shared_ptr<const SparseWeights> Matmul::source() const {
  return std::make_shared<const SparseWeights>(weights_->source());
}

std::int64_t Matmul::weight_bytes() const {
  return static_cast<std::int64_t>(bias_.size() * sizeof(float)) + (owns_weights_ ? weights_->bytes() : 0);
}

Shape Matmul::output_shape(const Shape& in) const {
  if (in.c != weights_->columns() || in.h != 1 || in.w != 1) {
    throw std::invalid_argument("matmul: the input must be [m][columns of the weights]");
  }
  return {in.n, weights_->rows(), 1, 1};
}

void Matmul::run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const {
  const float* const second = others.second;
  const Shape out_shape = output_shape(shape);
  const std::int64_t m = shape.n;
  if (m == 0) return;
  if (m <= kLanes) return run_few(pool, m, in, second, out);
  const std::int64_t blocks = ceil_div(m, kLanes);
  if (options_.layout == Layout::nchw_n16) return run_many(pool, blocks, in, second, out);
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
  run_many(pool, blocks, x, residual, y);
  Reorder(Layout::nchw_n16, kernels_).run(pool, out_shape, y, nullptr, out);
}

void Matmul::run_few(ThreadPool& pool, std::int64_t m, const float* in, const float* second, float* out) const {
  const std::int64_t rows = weights_->rows();
  const std::int64_t columns = weights_->columns();
  const bool in_lanes = options_.layout == Layout::nchw_n16;
  Scratch& scratch = thread_scratch();
  Few few{};
  few.m = m;
  if (weights_->is_list()) {
    few.width = in_lanes ? kLanes : m == 1 ? 1 : m <= 4 ? 4 : m <= 8 ? 8 : 16;
    few.x = in;
    if (!in_lanes && few.width > 1) {
      float* const interleaved = scratch.x.floats(static_cast<std::size_t>(columns * few.width));
      for (std::int64_t column = 0; column < columns; ++column) {
        for (std::int64_t row = 0; row < few.width; ++row) {
          interleaved[column * few.width + row] = row < m ? in[row * columns + column] : 0.0F;
        }
      }
      few.x = interleaved;
    }
    few.sums = scratch.y.floats(static_cast<std::size_t>(rows * few.width));
  } else {
    const std::int64_t x_floats = weights_->words() * kWordColumns;
    float* const x = scratch.x.floats(static_cast<std::size_t>(m * x_floats));
    if (in_lanes) {
      kernels_.deinterleave(in, x_floats, columns, static_cast<int>(m), x, false);
    } else {
      for (std::int64_t row = 0; row < m; ++row) std::copy_n(in + row * columns, columns, x + row * x_floats);
    }
    for (std::int64_t row = 0; row < m; ++row) {
      std::fill(x + row * x_floats + columns, x + (row + 1) * x_floats, 0.0F);
    }
    float* const scales = scratch.y.floats(kLanes);
    few.args.form = packed_kernels_.operands({.type = weights_->type(),
                                              .grouped = weights_->is_grouped(),
                                              .columns = columns,
                                              .words = weights_->words(),
                                              .rows = static_cast<int>(m),
                                              .x = x,
                                              .scales = scales});
    weights_->describe(few.args);
    few.args.x = x;
    few.args.x_scales = scales;
    few.args.x_rows = static_cast<int>(m);
    few.args.bias = bias_.data();
    few.args.row_stride = in_lanes ? kLanes : 1;
    few.args.x_stride = in_lanes ? 1 : rows;
  }
  const auto chunk = [&](std::int64_t begin, std::int64_t end) {
    if (weights_->is_list()) {
      multiply_lists(few, begin, end);
    }
    finish_few(few, second, begin, end, out);
  };
  if (weights_->nnz() * m < kAlone) return chunk(0, rows);
  const auto chunks = weights_->chunks();
  pool.parallel_for(static_cast<std::int64_t>(chunks.size()) - 1, [&](std::int64_t i) {
    chunk(chunks[static_cast<std::size_t>(i)], chunks[static_cast<std::size_t>(i) + 1]);
  });
}

void Matmul::multiply_lists(const Few& few, std::int64_t begin, std::int64_t end) const {
  StreamArgs args{};
  args.width = static_cast<std::uint32_t>(few.width);
  args.row_begin = static_cast<std::uint32_t>(begin);
  args.row_end = static_cast<std::uint32_t>(end);
  args.acc = few.sums;
  for (const PackedRows::Slice& slice : weights_->slices()) {
    args.x = few.x + slice.first * few.width;
    args.starts = slice.starts.data();
    args.columns = slice.columns.data();
    args.values = slice.values.data();
    args.bias = slice.first == 0 ? bias_.data() : nullptr;
    kernels_.stream(args);
  }
}

// Rows [begin, end) of the weights: their sums, which lists have left in `sums`, to where they belong.
void Matmul::finish_few(const Few& few, const float* second, std::int64_t begin, std::int64_t end, float* out) const {
  const std::int64_t rows = weights_->rows();
  const bool in_lanes = options_.layout == Layout::nchw_n16;
  // `second` may be where the result goes: sums are added to it elsewhere then.
  std::vector<float>& apart = []() -> std::vector<float>& {
    static thread_local std::vector<float> sums;
    return sums;
  }();
  const std::int64_t parts = in_lanes ? 1 : few.m;
  const std::int64_t part_floats = (end - begin) * (in_lanes ? kLanes : 1);
  const bool is_list = weights_->is_list();
  if (!is_list) {
    PackedRowsArgs args = few.args;
    args.row_begin = begin;
    args.row_end = end;
    float* to = out + begin * args.row_stride;
    if (second != nullptr) {
      apart.resize(static_cast<std::size_t>(parts * part_floats));
      to = apart.data();
      if (!in_lanes) args.x_stride = part_floats;
    }
    if (in_lanes && few.m < kLanes) std::fill_n(to, part_floats, 0.0F);
    args.out = to - begin * args.row_stride;
    packed_kernels_.multiply(args);
  }
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t at = part * rows + begin * (in_lanes ? kLanes : 1);
    float* const to = out + at;
    if (is_list) {
      const float* const sums = few.sums + begin * few.width + (in_lanes ? 0 : part);
      const std::int64_t step = in_lanes ? 1 : few.width;
      for (std::int64_t i = 0; i < part_floats; ++i) {
        to[i] = sums[i * step] + (second == nullptr ? 0.0F : second[at + i]);
      }
    } else if (second != nullptr) {
      const float* const sums = apart.data() + part * part_floats;
      for (std::int64_t i = 0; i < part_floats; ++i) to[i] = sums[i] + second[at + i];
    }
    if (options_.activation.kind == ActivationKind::none) continue;
    kernels_.elementwise({.kind = BinaryKind::first,
                          .a = to,
                          .b = nullptr,
                          .repeats_b = false,
                          .scale = 1,
                          .shift = 0,
                          .out = to,
                          .count = part_floats,
                          .activation = options_.activation});
  }
}

}  // namespace sift::cpu
