// The Python side of sequences of operators.
#pragma once

#include <nanobind/nanobind.h>

namespace sift::cpu {

// Needs the types of bind_ops().
void bind_sequence(nanobind::module_& module);

}  // namespace sift::cpu
