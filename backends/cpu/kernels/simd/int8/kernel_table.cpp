#include "simd/int8/kernel_table.h"

#include <string_view>

namespace sift::cpu {

#if defined(SIFT_HAS_X86)
namespace int8_avx512_vnni {
const Int8Kernels* int8_kernels();
}
namespace int8_avx_vnni {
const Int8Kernels* int8_kernels();
}
namespace int8_avx2_madd {
const Int8Kernels* int8_kernels();
}
#endif
#if defined(SIFT_HAS_NEON)
namespace int8_neon_i8mm {
const Int8Kernels* int8_kernels();
}
namespace int8_neon_dot {
const Int8Kernels* int8_kernels();
}
namespace int8_neon_mull {
const Int8Kernels* int8_kernels();
}
#endif
namespace int8_portable {
const Int8Kernels* int8_kernels();
}

const Int8Kernels* find_int8_kernels(const char* isa) {
  const std::string_view name = isa;
#if defined(SIFT_HAS_X86)
  if (name == "avx512_vnni") return int8_avx512_vnni::int8_kernels();
  if (name == "avx_vnni") return int8_avx_vnni::int8_kernels();
  if (name == "avx2_madd") return int8_avx2_madd::int8_kernels();
#endif
#if defined(SIFT_HAS_NEON)
  if (name == "neon_i8mm") return int8_neon_i8mm::int8_kernels();
  if (name == "neon_dot") return int8_neon_dot::int8_kernels();
  if (name == "neon_mull") return int8_neon_mull::int8_kernels();
#endif
  if (name == "portable") return int8_portable::int8_kernels();
  return nullptr;
}

}  // namespace sift::cpu
