// What the steps of a recurrent layer share.
#pragma once

#include "products/recurrent.h"

namespace sift::cpu {

// How states lie, and which sequences go through all steps on a thread of their own.
struct Recurrent::Plan {
  std::int64_t width;   // of a group of states, [hidden][width]: sixteen rows, or one
  std::int64_t groups;  // of the batch
  std::int64_t parts;   // of the groups of a direction, each for one thread; one part has all threads
  // Whether states lie in lanes and the input row-major, so that each step is interleaved.
  bool is_interleaved;
};

// Some groups of one direction on their way through the steps. Arrays of states begin with the first of them.
struct Recurrent::Walk {
  Plan plan;
  std::int64_t direction;
  std::int64_t first;  // group
  std::int64_t groups;
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
