// The extension module sift_onnx.backends.cpu._kernels: what Python sees of the kernels.
#include <nanobind/nanobind.h>

#include "base/cache.h"
#include "base/microarchitecture.h"
#include "bind/bindings.h"

namespace {

// Each is determined once, at the first call. A child forked meanwhile would wait for the thread that does it: do it
// now.
void detect_machine() {
  sift::cpu::level1_cache_bytes();
  sift::cpu::level2_cache_bytes();
  sift::cpu::level3_cache_bytes();
  sift::cpu::detected_microarchitecture();
}

}  // namespace

NB_MODULE(_kernels, module) {
  module.doc() = "Compiled kernels of the sparse CPU back end.";
  // Daemon threads may still be at work when the process exits: what they use is kept, and that is no mistake.
  nanobind::set_leak_warnings(false);
  detect_machine();
  sift::cpu::bind_depthwise(module);
  sift::cpu::bind_machine(module);
  sift::cpu::bind_ops(module);
  sift::cpu::bind_copies(module);
  sift::cpu::bind_products(module);
  sift::cpu::bind_banded(module);
  sift::cpu::bind_recurrent(module);
  sift::cpu::bind_views(module);
  sift::cpu::bind_selection(module);
  sift::cpu::bind_sequence(module);
  sift::cpu::bind_int8(module);
  sift::cpu::bind_trainable_conv(module);
  sift::cpu::bind_training_norms(module);
  sift::cpu::bind_training_ops(module);
  sift::cpu::bind_weight_gradient(module);
}
