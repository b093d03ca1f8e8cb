#include "products/matmul.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "ops/reorder.h"

namespace sift::cpu {
namespace {

// Multiply-adds below which waking the other threads costs more than they save.
constexpr std::int64_t kAlone = 1 << 14;

// Of few rows of x. The fewer there are, the less often a thread has weights that are in the other's caches, having
// begun a little earlier; one that begins late leaves some to the others.
constexpr std::int64_t kTasksPerThread = 4;

// Buffers of the calling thread. They are read by the others while they work for it.
struct Scratch {
  AlignedBuffer x;
  AlignedBuffer y;
  AlignedBuffer second;
  AlignedBuffer scales;
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

}  // namespace

// Up to 16 rows of x, as the weights' form wants them.
struct Matmul::Few {
  std::int64_t m;
  const float* x;
  std::int64_t width;   // of lists: rows of x that lie interleaved
  PackedRowsArgs args;  // of the other forms: all but the weights
};

// Of some rows of weights: where those of a row of x begin, and how far one is from the next.
struct Matmul::Sums {
  const float* at;  // null: they are in the result
  std::int64_t row_step;
  std::int64_t step;
};

Matmul::Matmul(std::shared_ptr<const PackedRows> weights, std::vector<float> bias, const MatmulOptions& options,
               const KernelTable& kernels)
    : weights_(std::move(weights)),
      owns_weights_(false),
      bias_(std::move(bias)),
      options_(options),
      kernels_(kernels),
      packed_kernels_(packed_row_kernels(kernels, options.extension)) {
  const std::int64_t rows = weights_->rows();
  if (!bias_.empty() && static_cast<std::int64_t>(bias_.size()) != rows) {
    throw std::invalid_argument("matmul: one bias per row of the weights");
  }
  bias_.resize(static_cast<std::size_t>(ceil_div(rows, 4) * 4), 0.0F);
}

Matmul::Matmul(const SparseWeights& weights, std::vector<float> bias, Activation activation, const KernelTable& kernels)
    : Matmul(
          std::make_shared<const PackedRows>(PackedRows::pack(
              weights, ValueType::float32, {}, {.floats_as_lists_below = kernels.packed_rows.floats_as_lists_below})),
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
  if (m <= most_few()) {
    const SharedRun own{this, second, out};
    return run_few(pool, m, in, {&own, 1});
  }
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

bool Matmul::shares_input(const Op& other) const {
  const auto* const next = dynamic_cast<const Matmul*>(&other);
  if (next == nullptr || next->options_.layout != options_.layout ||
      next->options_.rounds_activations != options_.rounds_activations) {
    return false;
  }
  const PackedRows& own = *weights_;
  const PackedRows& others = *next->weights_;
  return &next->packed_kernels_ == &packed_kernels_ && others.columns() == own.columns() &&
         others.type() == own.type() && others.is_list() == own.is_list() &&
         others.is_windowed() == own.is_windowed() && others.group_columns() == own.group_columns();
}

void Matmul::run_shared(ThreadPool& pool, const Shape& shape, const float* in, std::span<const SharedRun> runs) const {
  const bool few = std::ranges::all_of(
      runs, [&](const SharedRun& run) { return shape.n <= static_cast<const Matmul*>(run.op)->most_few(); });
  if (shape.n == 0 || !few) return Op::run_shared(pool, shape, in, runs);
  run_few(pool, shape.n, in, runs);
}

PackedKind Matmul::kind() const { return {weights_->type(), weights_->is_grouped(), options_.rounds_activations}; }

// Rows of x that are multiplied by what is packed.
std::int64_t Matmul::most_few() const {
  if (weights_->is_list()) return kLanes;
  if (weights_->is_windowed()) return packed_kernels_.most_rows_in_windows(weights_->type());
  return packed_kernels_.most_rows(kind(), weights_->density());
}

// Whether lists of these weights, all of the same columns, are faster than what they are packed as.
bool Matmul::makes_lists(std::int64_t m, std::span<const SharedRun> runs) {
  const Matmul& first = *static_cast<const Matmul*>(runs[0].op);
  if (first.weights_->is_windowed()) return false;
  std::int64_t nnz = 0;
  std::int64_t rows = 0;
  for (const SharedRun& run : runs) {
    const PackedRows& weights = *static_cast<const Matmul*>(run.op)->weights_;
    nnz += weights.nnz();
    rows += weights.rows();
  }
  const PackedRows& weights = *first.weights_;
  const double below = first.packed_kernels_.list_below(first.kind(), static_cast<int>(m));
  return static_cast<double>(nnz) < below * static_cast<double>(rows * weights.columns());
}

// Of what `m` rows of x become.
std::int64_t Matmul::part_floats(std::int64_t m) const {
  return (m == 1 ? 1 : interleaved_rows(static_cast<int>(m))) * weights_->words() * kWordColumns;
}

Matmul::Few Matmul::operands_of(std::int64_t m, const float* in, bool lists, float* x, float* scales) const {
  const std::int64_t columns = weights_->columns();
  const bool in_lanes = options_.layout == Layout::nchw_n16;
  Few few{};
  few.m = m;
  if (weights_->is_list()) {
    few.width = in_lanes ? kLanes : m == 1 ? 1 : m <= 4 ? 4 : m <= 8 ? 8 : 16;
    few.x = in;
    if (!in_lanes && few.width > 1) {
      for (std::int64_t column = 0; column < columns; ++column) {
        for (std::int64_t row = 0; row < few.width; ++row) {
          x[column * few.width + row] = row < m ? in[row * columns + column] : 0.0F;
        }
      }
      few.x = x;
    }
    return few;
  }
  const float* from = in;
  if (in_lanes) {
    float* const rows_of_x = thread_scratch().second.floats(static_cast<std::size_t>(m * columns));
    kernels_.deinterleave(in, columns, columns, static_cast<int>(m), rows_of_x, false);
    from = rows_of_x;
  }
  few.x = x;
  few.args.form = packed_kernels_.operands({.type = weights_->type(),
                                            .group_columns = weights_->group_columns(),
                                            .lists = lists,
                                            .windows = weights_->is_windowed(),
                                            .two_bytes = options_.rounds_activations,
                                            .columns = columns,
                                            .words = weights_->words(),
                                            .rows = static_cast<int>(m),
                                            .from = from,
                                            .x = x,
                                            .scales = scales});
  few.args.x = x;
  few.args.x_scales = scales;
  few.args.x_rows = static_cast<int>(m);
  return few;
}

void Matmul::run_few(ThreadPool& pool, std::int64_t m, const float* in, std::span<const SharedRun> runs) const {
  const auto matmul_of = [](const SharedRun& run) -> const Matmul& { return *static_cast<const Matmul*>(run.op); };
  // Each product's part of the sums, and of the loop.
  std::array<std::int64_t, kMostSharedRuns + 1> first_sum{};
  std::array<std::int64_t, kMostSharedRuns + 1> first_chunk{};
  std::int64_t weights = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const PackedRows& own = *matmul_of(runs[i]).weights_;
    first_sum[i + 1] = first_sum[i] + own.rows() * kLanes;
    first_chunk[i + 1] = first_chunk[i] + static_cast<std::int64_t>(own.chunks().size()) - 1;
    weights += own.nnz();
  }
  Scratch& scratch = thread_scratch();
  const std::int64_t floats = part_floats(std::min(m, kLanes));
  float* const x =
      scratch.x.floats(static_cast<std::size_t>(std::min<std::int64_t>(ceil_div(m, kLanes), kMostParts) * floats));
  float* const scales = scratch.scales.floats(kMostParts * kLanes);
  float* const sums = scratch.y.floats(static_cast<std::size_t>(first_sum[runs.size()]));
  std::array<Few, kMostParts> parts;
  for (std::int64_t first = 0; first < m; first += kMostParts * kLanes) {
    const std::int64_t count = std::min<std::int64_t>(ceil_div(m - first, kLanes), kMostParts);
    const auto prepare = [&](std::int64_t part) {
      const std::int64_t row = first + part * kLanes;
      const std::int64_t rows = std::min(m - row, kLanes);
      parts[static_cast<std::size_t>(part)] = operands_of(rows, in + row * weights_->columns(), makes_lists(rows, runs),
                                                          x + part * floats, scales + part * kLanes);
    };
    const auto multiply = [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      const Matmul& own = matmul_of(runs[i]);
      const std::int64_t at = first * own.weights_->rows();
      const SharedRun run{runs[i].op, runs[i].second == nullptr ? nullptr : runs[i].second + at, runs[i].out + at};
      own.multiply_few({parts.data(), static_cast<std::size_t>(count)}, run, sums + first_sum[i], begin, end);
    };
    if (weights * std::min(m - first, count * kLanes) < kAlone) {
      for (std::int64_t part = 0; part < count; ++part) prepare(part);
      for (std::size_t i = 0; i < runs.size(); ++i) multiply(i, 0, matmul_of(runs[i]).weights_->rows());
      continue;
    }
    if (count == 1) {
      prepare(0);
    } else {
      pool.parallel_for(count, prepare);
    }
    const std::int64_t chunks = first_chunk[runs.size()];
    const std::int64_t tasks = std::min(chunks, kTasksPerThread * pool.threads());
    pool.parallel_for(tasks, [&](std::int64_t task) {
      const std::int64_t last = chunks * (task + 1) / tasks;
      std::size_t i = 0;
      for (std::int64_t chunk = chunks * task / tasks; chunk < last;) {
        while (chunk >= first_chunk[i + 1]) ++i;
        const std::int64_t end = std::min(last, first_chunk[i + 1]);
        const std::int64_t* const bounds = matmul_of(runs[i]).weights_->chunks().data();
        multiply(i, bounds[chunk - first_chunk[i]], bounds[end - first_chunk[i]]);
        chunk = end;
      }
    });
  }
}

void Matmul::multiply_lists(const Few& few, float* sums, std::int64_t begin, std::int64_t end) const {
  StreamArgs args{};
  args.width = static_cast<std::uint32_t>(few.width);
  args.row_begin = static_cast<std::uint32_t>(begin);
  args.row_end = static_cast<std::uint32_t>(end);
  args.acc = sums;
  for (const PackedRows::Slice& slice : weights_->slices()) {
    args.x = few.x + slice.first * few.width;
    args.starts = slice.starts.data();
    args.columns = slice.columns.data();
    args.values = slice.bytes.empty() ? slice.values.data() : nullptr;
    args.bytes = slice.bytes.data();
    args.scales = weights_->scales().empty() ? nullptr : weights_->scales().data();
    args.bias = slice.first == 0 ? bias_.data() : nullptr;
    kernels_.stream(args);
  }
}

// Rows [begin, end) of the weights, by parts of 16 rows of x; lists leave sums at `list_sums`, [rows][width], first.
void Matmul::multiply_few(std::span<const Few> parts, const SharedRun& own, float* list_sums, std::int64_t begin,
                          std::int64_t end) const {
  const bool in_lanes = options_.layout == Layout::nchw_n16;
  const std::int64_t part_step = weights_->rows() * kLanes;
  if (weights_->is_list()) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::int64_t width = parts[i].width;
      const Sums sums{list_sums + begin * width, in_lanes ? kLanes : 1, in_lanes ? 1 : width};
      multiply_lists(parts[i], list_sums, begin, end);
      complete(parts[i], own, static_cast<std::int64_t>(i) * part_step, sums, begin, end);
    }
    return;
  }
  // `second` may be where the result goes: sums are added to it elsewhere then.
  std::vector<float>& apart = []() -> std::vector<float>& {
    static thread_local std::vector<float> sums;
    return sums;
  }();
  const std::int64_t part_sums = (end - begin) * kLanes;
  if (own.second != nullptr) apart.resize(static_cast<std::size_t>(part_sums) * parts.size());
  std::array<PackedRowsArgs, kMostParts> all;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    PackedRowsArgs& args = all[i];
    args = parts[i].args;
    weights_->describe(args);
    args.bias = bias_.data();
    args.row_begin = begin;
    args.row_end = end;
    args.row_stride = in_lanes ? kLanes : 1;
    args.x_stride = in_lanes ? 1 : weights_->rows();
    float* to = own.out + static_cast<std::int64_t>(i) * part_step + begin * args.row_stride;
    if (own.second != nullptr) {
      to = apart.data() + static_cast<std::int64_t>(i) * part_sums;
      if (!in_lanes) args.x_stride = end - begin;
    }
    if (in_lanes && parts[i].m < kLanes) std::fill_n(to, part_sums, 0.0F);
    args.out = to - begin * args.row_stride;
  }
  packed_kernels_.multiply(all.data(), static_cast<int>(parts.size()));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const float* const sums = own.second == nullptr ? nullptr : apart.data() + static_cast<std::int64_t>(i) * part_sums;
    complete(parts[i], own, static_cast<std::int64_t>(i) * part_step, {sums, in_lanes ? kLanes : end - begin, 1}, begin,
             end);
  }
}

// Adds `second` to sums that are not in their place yet, and applies the activation; `at` is where the part of x
// begins.
void Matmul::complete(const Few& few, const SharedRun& own, std::int64_t at, const Sums& sums, std::int64_t begin,
                      std::int64_t end) const {
  const bool in_lanes = options_.layout == Layout::nchw_n16;
  const std::int64_t count = (end - begin) * (in_lanes ? kLanes : 1);
  for (std::int64_t row = 0; row < (in_lanes ? 1 : few.m); ++row) {
    const std::int64_t place = at + row * weights_->rows() + begin * (in_lanes ? kLanes : 1);
    float* const to = own.out + place;
    if (sums.at != nullptr) {
      const float* const from = sums.at + row * sums.row_step;
      const float* const second = own.second == nullptr ? nullptr : own.second + place;
      for (std::int64_t i = 0; i < count; ++i) {
        to[i] = from[i * sums.step] + (second == nullptr ? 0.0F : second[i]);
      }
    }
    if (options_.activation.kind == ActivationKind::none) continue;
    kernels_.elementwise({.kind = BinaryKind::first,
                          .a = to,
                          .b = nullptr,
                          .repeats_b = false,
                          .scale = 1,
                          .shift = 0,
                          .out = to,
                          .count = count,
                          .activation = options_.activation});
  }
}

}  // namespace sift::cpu
