#include "simd/kernel_table.h"

#include <string_view>

namespace sift::cpu {

#if defined(SIFT_HAS_X86)
namespace avx512 {
const KernelTable* kernels();
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

}  // namespace sift::cpu
