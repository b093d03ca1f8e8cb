// What the steps of a recurrent layer share.
#pragma once

#include "products/recurrent.h"

namespace sift::cpu {

// One direction on its way through the steps.
struct Recurrent::Walk {
  std::int64_t direction;
  const float* in;
  float* out;
  float* h;
  float* c;
  float* reset;
  float* product;
  float* candidate;
  float* x;     // of inputs in planes, some gates with their rows in lanes
  float* kept;  // with lengths: states before the step
  const float* lengths;
};

}  // namespace sift::cpu
