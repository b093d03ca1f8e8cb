// Sums of a convolution or matrix product of quads: live quads of weights times what the taps of a window read.
//
// A block of 16 positions has its operands side by side, those of a 1x1 convolution where the input has them, others
// copied. Of one to three channels, taps share quads where that leaves fewer of them. Rows of weights are lists of live
// quads, or generated code (jit/generated_rows.h) in which a quad takes the place of a channel.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "base/prefetcher.h"
#include "int8/quad_weights.h"
#include "jit/code_body.h"
#include "simd/int8/kernel_table.h"
#include "weights/packed_weights.h"

namespace sift::cpu {

// Of some rows at one block of positions.
struct QuadSums {
  std::int64_t block;
  std::int64_t first_row;    // a multiple of 4
  std::int64_t rows;         // up to QuadProduct::kMostRows
  const std::int32_t* sums;  // [rows][16], aligned to 64 bytes
};

class WindowReader;

// How rows of weights are multiplied: as lists, or by generated code, whose quads are loaded as CodeWeight says; or in
// whichever way is faster here.
enum class QuadAlgorithm : std::uint8_t { fastest, lists, code, code_in_fours };

class QuadProduct {
 public:
  static constexpr std::int64_t kMostRows = 28;

  // Throws std::invalid_argument where code is asked for that cannot be run, or the window does not fit the weights.
  QuadProduct(const QuadWeights& weights, std::vector<std::int32_t> bias, const ConvGeometry& geometry,
              QuadAlgorithm algorithm, const Int8Kernels& kernels);

  const Int8Kernels& kernels() const { return kernels_; }
  std::int64_t rows() const { return rows_; }
  bool is_generated() const { return !code_.code.empty(); }
  std::int64_t bytes() const;

  // Throws std::invalid_argument if the input does not have the weights' channels.
  Shape output_shape(const Shape& in) const;

  // Calls consume(QuadSums) for all rows and blocks, several at a time on the threads of the pool. Sums are those of
  // bias + weights (x - zero_point), which is also what taps outside of the image read. Where the generated code can
  // store them as `quads` says, consume is not called for them.
  template <typename Consume>
  void run(ThreadPool& pool, const Shape& shape, const std::uint8_t* in, std::uint8_t zero_point,
           const Consume& consume, const QuadOutput* quads = nullptr) const {
    const auto call = [](const void* context, const QuadSums& sums) { (*static_cast<const Consume*>(context))(sums); };
    run_with(pool, shape, in, zero_point, {.context = &consume, .call = call, .quads = quads});
  }

 private:
  struct Consumer {
    const void* context;
    void (*call)(const void* context, const QuadSums& sums);
    const QuadOutput* quads;
  };
  void run_with(ThreadPool& pool, const Shape& shape, const std::uint8_t* in, std::uint8_t zero_point,
                const Consumer& consumer) const;
  // Rows of one group.
  struct Group {
    const std::uint8_t* operands;
    std::ptrdiff_t block_bytes;
    std::int64_t blocks;
    const std::int32_t* bias;
    std::int64_t first_row;
    std::int64_t end_row;
    std::int32_t* sums;
    const QuadOutput* quads;  // null: to `sums`
    Prefetcher* ahead;        // of what this thread reads next
    std::int64_t ahead_lines;
  };
  // Operands of one block, aligned to 64 bytes.
  void read(const WindowReader& reader, const std::uint8_t* in, std::uint8_t zero_point, std::int64_t block,
            std::uint8_t* out) const;
  void multiply(const Group& group) const;
  void multiply_by_code(const Group& group) const;
  void multiply_side_by_side(const Group& group) const;
  void pack(const QuadWeights& weights, QuadAlgorithm algorithm);
  void pack_lists(const QuadWeights& weights);
  void lay_side_by_side();
  void pack_code(const QuadWeights& weights, CodeWeight weight);

  template <typename T>
  using Pages = std::vector<T, PageAllocator<T>>;

  const Int8Kernels& kernels_;
  ConvGeometry geometry_;
  std::int64_t rows_;
  std::int64_t channels_;
  std::int64_t operand_quads_;  // of a block: taps times quads of channels, or fewer where taps share quads
  bool shares_taps_ = false;
  std::int64_t group_rows_;  // handled at a time, a multiple of 4
  std::vector<std::int32_t> bias_;
  std::vector<std::int32_t> row_sums_;
  // Lists: starts [rows + 1], or [rows / kSellRows + 1] of lists side by side; a column is tap * quads + quad.
  std::vector<std::uint32_t> starts_;
  Pages<std::uint32_t> columns_;
  Pages<std::uint32_t> quads_;
  Pages<std::uint16_t> sell_columns_;  // of lists side by side, instead of columns
  std::vector<std::uint8_t> order_;    // see SellQuadsArgs
  PackedSlice code_;
  std::vector<std::ptrdiff_t> taps_;  // of code, bytes from the first tap's operands
};

}  // namespace sift::cpu
