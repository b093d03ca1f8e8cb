#include "simd/views/kernel_table.h"

namespace sift::cpu {

#if defined(SIFT_HAS_X86)
namespace avx512 {
const ViewKernels& view_kernels();
}
namespace avx2 {
const ViewKernels& view_kernels();
}
#endif
#if defined(SIFT_HAS_NEON)
namespace neon {
const ViewKernels& view_kernels();
}
#endif
namespace portable {
const ViewKernels& view_kernels();
}

const ViewKernels& view_kernels_of([[maybe_unused]] const KernelTable& kernels) {
#if defined(SIFT_HAS_X86)
  if (&kernels == find_kernels("avx512")) return avx512::view_kernels();
  if (&kernels == find_kernels("avx2")) return avx2::view_kernels();
#endif
#if defined(SIFT_HAS_NEON)
  if (&kernels == find_kernels("neon")) return neon::view_kernels();
#endif
  return portable::view_kernels();
}

}  // namespace sift::cpu
