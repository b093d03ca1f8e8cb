// The extension module sift_onnx.backends.cpu._kernels: what Python sees of the kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <string>
#include <vector>

#include "bind_ops.h"
#include "bind_sequence.h"
#include "isa.h"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_kernels, module) {
  module.doc() = "Compiled kernels of the sparse CPU back end.";

  module.def(
      "cpu_features", &sift::isa::cpu_features,
      "Names of the features that this machine and its operating system allow, as /proc/cpuinfo spells them.");

  module.def(
      "supported_isas", [] { return sift::isa::isas_of(sift::isa::cpu_features()); },
      "Instruction sets that kernels are built for and that this machine runs, best first.");

  module.def(
      "detected_isa", [] { return sift::isa::isas_of(sift::isa::cpu_features()).front(); },
      "The best instruction set of this machine: 'avx512', 'avx2', 'neon' or 'portable'.");

  // The two steps of the detection, for tests: they show what other machines would get.
  module.def(
      "decode_x86_features",
      [](std::uint32_t leaf1_ecx, std::uint32_t leaf7_ebx, std::uint32_t leaf7_ecx, std::uint32_t leaf7_edx,
         std::uint32_t leaf7_1_eax, std::uint64_t xcr0) {
        return sift::isa::decode_x86({leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax, xcr0});
      },
      nb::kw_only(), "leaf1_ecx"_a = 0, "leaf7_ebx"_a = 0, "leaf7_ecx"_a = 0, "leaf7_edx"_a = 0, "leaf7_1_eax"_a = 0,
      "xcr0"_a = 0, "Names of the features that an x86-64 machine with these CPUID and XGETBV words would allow.");

  module.def("isas_of", &sift::isa::isas_of, "features"_a,
             "Instruction sets that a machine with these features would run, best first.");

  module.def(
      "trim_memory",
      [] {
#if defined(__GLIBC__)
        const nb::gil_scoped_release unlocked;
        malloc_trim(0);
#endif
      },
      "Give memory that was freed back to the system, where the allocator keeps it for itself.");

  sift::cpu::bind_ops(module);
  sift::cpu::bind_sequence(module);
}
