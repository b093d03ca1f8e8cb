// From the sums of a step's gates to the next state.
#pragma once

#include "simd/activation.h"
#include "simd/recurrent/kernel_table.h"
#include "simd/vec.h"

namespace sift::cpu::SIFT_ISA {

// step(load, store, i) for vectors that begin at value i; the last one may have fewer lanes.
template <typename Step>
[[gnu::always_inline]] inline void each_vector(std::int64_t count, Step step) {
  std::int64_t i = 0;
  for (; i + kVecLanes <= count; i += kVecLanes) {
    step(load_unaligned, store_unaligned, i);
  }
  if (const int lanes = static_cast<int>(count - i); lanes > 0) {
    step([lanes](const float* at) { return load_lanes(at, lanes); },
         [lanes](float* at, Vec value) { store_lanes(at, value, lanes); }, i);
  }
}

void recurrent_cell(RecurrentCellArgs args);
void recurrent_cell(RecurrentCellArgs args) {
  const std::ptrdiff_t x = args.x_gate;
  const std::ptrdiff_t r = args.product_gate;
  switch (args.stage) {
    case RecurrentStage::lstm:
      return each_vector(args.count, [&](auto load, auto store, std::int64_t at) {
        const auto sum = [&](int gate) { return load(args.x + gate * x + at) + load(args.product + gate * r + at); };
        const Vec kept = sigmoid(sum(2)) * load(args.c + at);
        const Vec c = kept + sigmoid(sum(0)) * tanh(sum(3));
        store(args.c + at, c);
        store(args.h + at, sigmoid(sum(1)) * tanh(c));
      });
    case RecurrentStage::gru_linear:
      return each_vector(args.count, [&](auto load, auto store, std::int64_t at) {
        const auto sum = [&](int gate) { return load(args.x + gate * x + at) + load(args.product + gate * r + at); };
        const Vec z = sigmoid(sum(0));
        const Vec n = tanh(load(args.x + 2 * x + at) + sigmoid(sum(1)) * load(args.product + 2 * r + at));
        store(args.h + at, n + z * (load(args.h + at) - n));
      });
    case RecurrentStage::gru_reset:
      return each_vector(args.count, [&](auto load, auto store, std::int64_t at) {
        const auto sum = [&](int gate) { return load(args.x + gate * x + at) + load(args.product + gate * r + at); };
        store(args.reset + at, sigmoid(sum(1)) * load(args.h + at));
      });
    case RecurrentStage::gru:
      return each_vector(args.count, [&](auto load, auto store, std::int64_t at) {
        const Vec z = sigmoid(load(args.x + at) + load(args.product + at));
        const Vec n = tanh(load(args.x + 2 * x + at) + load(args.candidate + at));
        store(args.h + at, n + z * (load(args.h + at) - n));
      });
    case RecurrentStage::tanh:
      return each_vector(args.count, [&](auto load, auto store, std::int64_t at) {
        store(args.h + at, tanh(load(args.x + at) + load(args.product + at)));
      });
    case RecurrentStage::relu:
      return each_vector(args.count, [&](auto load, auto store, std::int64_t at) {
        store(args.h + at, max(load(args.x + at) + load(args.product + at), splat(0)));
      });
  }
}

}  // namespace sift::cpu::SIFT_ISA
