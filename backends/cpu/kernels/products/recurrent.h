// LSTM, GRU and RNN: what the input adds to the gates of all steps is known, the steps are walked here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/op.h"
#include "base/recurrent_cell.h"
#include "products/recurrent_weights.h"
#include "simd/recurrent/kernel_table.h"

namespace sift::cpu {

struct RecurrentOptions {
  RecurrentCell cell = RecurrentCell::lstm;
  std::vector<bool> reversed;    // of each direction: whether it begins with the last step
  bool has_cell_states = false;  // lstm: the result has them too
  bool has_lengths = false;      // sequences have numbers of steps of their own
  std::int64_t batch = 1;
};

// Input [steps batch][directions gates hidden], the gates without the state's product. Result [steps batch][directions
// hidden], the states h, and behind them as many channels of states c if asked for. Second operand, and third of lstm:
// the first h and c, [directions batch][hidden]; zero where they are left out.
//
// With lengths, the mask has one for each sequence. A sequence has no steps from its length on: its h is zero there,
// and its state stays what it was, or zero if it has no steps at all. The result has these states too, as channels
// between those of h and those of c.
//
// Batches of whole sixteens are in NCHWn16, all others row-major: the rows of a step must begin a group of lanes.
class Recurrent final : public Op {
 public:
  // Throws std::invalid_argument for sizes that do not fit.
  Recurrent(std::shared_ptr<const SparseWeights> weights, std::vector<float> bias, const RecurrentOptions& options,
            const KernelTable& kernels);
  // The same for another batch; they share the packed weights.
  Recurrent(const Recurrent& other, std::int64_t batch);

  Shape output_shape(const Shape& in) const override;
  Layout input_layout() const override;
  OtherSizes other_sizes(const Shape& in) const override;
  void run(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const override;
  std::int64_t weight_bytes() const override { return weights_->bytes(); }

 private:
  struct Plan;
  struct Walk;
  void set_sizes();
  Plan plan(int threads) const;
  void run_directions(ThreadPool& pool, const Shape& shape, const float* in, const Others& others, float* out) const;
  void run_groups(ThreadPool& pool, Walk walk, const Shape& shape, const Others& others) const;
  void receive(const Walk& walk, const float* given, float* state) const;
  void run_cell(ThreadPool& pool, const Walk& walk, std::int64_t step, RecurrentStage stage) const;
  void run_ended(const Walk& walk, std::int64_t step, std::int64_t group, RecurrentCellArgs args) const;
  bool has_ended(const Walk& walk, std::int64_t step, std::int64_t sequence) const;
  void deliver(const Walk& walk, const float* state, std::int64_t group, std::int64_t row, std::int64_t channel,
               std::int64_t count) const;
  void clear_unused(const Walk& walk) const;
  void clear(const Walk& walk, std::int64_t step, std::int64_t sequence, std::int64_t channel,
             std::int64_t count) const;

  RecurrentOptions options_;
  const KernelTable& kernels_;
  RecurrentCellFunction cell_;
  std::shared_ptr<const RecurrentWeights> weights_;
  std::int64_t hidden_ = 0;
  std::int64_t channels_ = 0;  // of the input
  std::int64_t results_ = 0;   // channels of the result
};

}  // namespace sift::cpu
