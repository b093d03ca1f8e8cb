#include "simd/kernel_table.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/isa.h"

namespace sift::cpu {

#if defined(SIFT_HAS_X86)
namespace avx512 {
const KernelTable* kernels();
}
namespace avx512_vbmi2 {
const PackedRowKernels* packed_row_kernels();
}
namespace avx2 {
const KernelTable* kernels();
}
#endif
#if defined(SIFT_HAS_NEON)
namespace neon {
const KernelTable* kernels();
}
#endif
namespace portable {
const KernelTable* kernels();
}

const KernelTable* find_kernels(const char* isa) {
  const std::string_view name = isa;
#if defined(SIFT_HAS_X86)
  if (name == "avx512") return avx512::kernels();
  if (name == "avx2") return avx2::kernels();
#endif
#if defined(SIFT_HAS_NEON)
  if (name == "neon") return neon::kernels();
#endif
  if (name == "portable") return portable::kernels();
  return nullptr;
}

const PackedRowKernels& packed_row_kernels(const KernelTable& kernels, [[maybe_unused]] bool extended) {
#if defined(SIFT_HAS_X86)
  // Asked once, as CPUID takes long in a virtual machine.
  static const bool has_extensions = [] {
    const std::vector<std::string> features = isa::cpu_features();
    return std::ranges::all_of(std::vector<std::string>{"avx512_vbmi2", "avx512_vnni"}, [&](const std::string& needed) {
      return std::ranges::find(features, needed) != features.end();
    });
  }();
  if (extended && has_extensions && &kernels == avx512::kernels()) return *avx512_vbmi2::packed_row_kernels();
#endif
  return kernels.packed_rows;
}

}  // namespace sift::cpu
