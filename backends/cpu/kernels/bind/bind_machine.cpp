#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/cache.h"
#include "base/isa.h"
#include "base/read_loop.h"
#include "base/thread_pool.h"
#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "jit/code_memory.h"

namespace sift::cpu {

namespace nb = nanobind;
using namespace nb::literals;

void bind_machine(nb::module_& module) {
  module.def("cpu_features", &isa::cpu_features,
             "Names of the features that this machine and its operating system allow, as /proc/cpuinfo spells them.");

  module.def(
      "supported_isas", [] { return isa::isas_of(isa::cpu_features()); },
      "Instruction sets that kernels are built for and that this machine runs, best first.");

  module.def(
      "detected_isa", [] { return isa::isas_of(isa::cpu_features()).front(); },
      "The best instruction set of this machine: 'avx512', 'avx2', 'neon' or 'portable'.");

  // The two steps of the detection, for tests: they show what other machines would get.
  module.def(
      "decode_x86_features",
      [](std::uint32_t leaf1_ecx, std::uint32_t leaf7_ebx, std::uint32_t leaf7_ecx, std::uint32_t leaf7_edx,
         std::uint32_t leaf7_1_eax, std::uint64_t xcr0) {
        return isa::decode_x86({leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax, xcr0});
      },
      nb::kw_only(), "leaf1_ecx"_a = 0, "leaf7_ebx"_a = 0, "leaf7_ecx"_a = 0, "leaf7_edx"_a = 0, "leaf7_1_eax"_a = 0,
      "xcr0"_a = 0, "Names of the features that an x86-64 machine with these CPUID and XGETBV words would allow.");

  module.def(
      "may_execute_code", &may_execute_code,
      "Whether this process may generate code and execute it: on x86-64, unless a policy of the system forbids it "
      "or SIFT_JIT is 0.");

  module.def("isas_of", &isa::isas_of, "features"_a,
             "Instruction sets that a machine with these features would run, best first.");

  module.def(
      "trim_memory",
      [] {
#if defined(__GLIBC__)
        const Unlocked unlocked;
        malloc_trim(0);
#endif
      },
      "Give memory that was freed back to the system, where the allocator keeps it for itself.");

  module.def(
      "cache_bytes", [] { return std::make_tuple(level1_cache_bytes(), level2_cache_bytes(), level3_cache_bytes()); },
      "Bytes of a core's first-level data cache, its second-level cache, and the last-level cache that cores share.");

  module.def(
      "run_multiply_adds",
      [](ThreadPool& pool, std::int64_t iterations, const std::string& isa, bool load) {
        const KernelTable& kernels = kernels_of(isa);
        const Unlocked unlocked;
        pool.parallel_for(pool.threads(), [&](std::int64_t) {
          [[maybe_unused]] volatile float keep = 0;
          if (load) {
            static thread_local AlignedBuffer buffer;  // a fresh page costs as much as a short loop
            float* const operands = buffer.floats(kLoopOperands);
            std::fill_n(operands, kLoopOperands, 1.0F);
            keep = kernels.fma_load_loop(operands, iterations);
          } else {
            keep = kernels.fma_loop(iterations);
          }
        });
        return kernels.peak_flops * iterations * pool.threads();
      },
      "pool"_a, "iterations"_a, "isa"_a = "", nb::kw_only(), "load"_a = false,
      "Do nothing but multiply-adds on every thread, for timing the machine's peak; returns how many operations. Their "
      "operands are in registers, or, with `load`, one of each is loaded from the first-level cache.");

  module.def(
      "read_memory",
      [](ThreadPool& pool, const nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& memory) {
        const Unlocked unlocked;
        return read_all(pool, {memory.data(), memory.size()});
      },
      "pool"_a, "memory"_a,
      "Read all of the memory once by a plain loop on every thread, for timing; returns the exclusive or of its "
      "words.");

  nb::class_<ThreadPool>(module, "ThreadPool", "Threads that operators share loops with.")
      .def(nb::init<int>(), nb::call_guard<Unlocked>(), "threads"_a, "Threads, at least one, counts the calling one.")
      .def_prop_ro("threads", &ThreadPool::threads, "Number of threads, the calling one included.");
}

}  // namespace sift::cpu
