#include "base/microarchitecture.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sift::cpu {
namespace {

Microarchitecture detect() {
#if defined(__x86_64__)
  std::uint32_t eax = 0;
  std::uint32_t ebx = 0;
  std::uint32_t ecx = 0;
  std::uint32_t edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx)) {
    const bool intel = ebx == signature_INTEL_ebx && edx == signature_INTEL_edx && ecx == signature_INTEL_ecx;
    if (intel) return Microarchitecture::intel;
    const bool amd = ebx == signature_AMD_ebx && edx == signature_AMD_edx && ecx == signature_AMD_ecx;
    if (amd && __get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
      constexpr std::uint32_t kZen3And4 = 0x19;
      constexpr std::uint32_t kZen5 = 0x1A;
      const std::uint32_t family = (eax >> 8 & 0xf) + (eax >> 20 & 0xff);
      const bool has_leaf7 = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0;
      if (family == kZen5) return Microarchitecture::zen5;
      if (family == kZen3And4 && has_leaf7 && (ebx & bit_AVX512F) != 0) return Microarchitecture::zen4;
    }
  }
#endif
  return Microarchitecture::amd;
}

}  // namespace

// In a virtual machine CPUID is answered by the host, which takes as long as a small layer.
Microarchitecture detected_microarchitecture() {
  static const Microarchitecture detected = detect();
  return detected;
}

}  // namespace sift::cpu
