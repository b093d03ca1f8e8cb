// The extension module sift_onnx.backends.cpu._kernels: what Python sees of the kernels.
#include "bindings.h"

NB_MODULE(_kernels, module) {
  module.doc() = "Compiled kernels of the sparse CPU back end.";
  sift::cpu::bind_machine(module);
  sift::cpu::bind_ops(module);
  sift::cpu::bind_products(module);
  sift::cpu::bind_sequence(module);
}
