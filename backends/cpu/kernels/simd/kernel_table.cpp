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
namespace avx512_vnni {
const PackedRowKernels* packed_row_kernels();
}
namespace avx512_vbmi2 {
const PackedRowKernels* packed_row_kernels();
}
namespace avx512_amx {
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

const PackedRowKernels& packed_row_kernels(const KernelTable& kernels, [[maybe_unused]] Extension most) {
#if defined(SIFT_HAS_X86)
  // Asked once, as CPUID takes long in a virtual machine.
  static const Extension own = [] {
    const std::vector<std::string> features = isa::cpu_features();
    const auto has = [&](std::string_view name) { return std::ranges::find(features, name) != features.end(); };
    if (!has("avx512_vnni")) return Extension::none;
    if (!has("avx512_vbmi2") || !has("avx512vbmi")) return Extension::vnni;
    return has("amx_int8") && isa::may_use_tiles() ? Extension::amx : Extension::vbmi2;
  }();
  if (&kernels == avx512::kernels()) {
    switch (std::min(own, most)) {
      case Extension::amx: return *avx512_amx::packed_row_kernels();
      case Extension::vbmi2: return *avx512_vbmi2::packed_row_kernels();
      case Extension::vnni: return *avx512_vnni::packed_row_kernels();
      case Extension::none: break;
    }
  }
#endif
  return kernels.packed_rows;
}

}  // namespace sift::cpu
