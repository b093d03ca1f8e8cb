#include "simd/recurrent/kernel_table.h"

namespace sift::cpu {

#if defined(SIFT_HAS_X86)
namespace avx512 {
void recurrent_cell(RecurrentCellArgs args);
void lookup_rows(LookupArgs args);
}  // namespace avx512
namespace avx2 {
void recurrent_cell(RecurrentCellArgs args);
}
#endif
#if defined(SIFT_HAS_NEON)
namespace neon {
void recurrent_cell(RecurrentCellArgs args);
}
#endif
namespace portable {
void recurrent_cell(RecurrentCellArgs args);
}

RecurrentCellFunction recurrent_cell_of([[maybe_unused]] const KernelTable& kernels) {
#if defined(SIFT_HAS_X86)
  if (&kernels == find_kernels("avx512")) return &avx512::recurrent_cell;
  if (&kernels == find_kernels("avx2")) return &avx2::recurrent_cell;
#endif
#if defined(SIFT_HAS_NEON)
  if (&kernels == find_kernels("neon")) return &neon::recurrent_cell;
#endif
  return &portable::recurrent_cell;
}

LookupFunction lookup_of([[maybe_unused]] const KernelTable& kernels) {
#if defined(SIFT_HAS_X86)
  if (&kernels == find_kernels("avx512")) return &avx512::lookup_rows;
#endif
  return nullptr;
}

}  // namespace sift::cpu
