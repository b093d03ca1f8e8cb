// The operators' classes in the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace sift::cpu {

void bind_ops(nanobind::module_& module);

}  // namespace sift::cpu
