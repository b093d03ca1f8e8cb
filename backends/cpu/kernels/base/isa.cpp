#include "base/isa.h"

#include <algorithm>
#include <array>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace sift::isa {
namespace {

enum class State { none, avx, avx512, amx };

struct Feature {
  std::string_view name;
  std::uint32_t X86Registers::* word;
  int bit;
  State state;
};

constexpr int kOsxsaveBit = 27;                           // of leaf1_ecx
constexpr std::uint64_t kAvxState = 0x06;                 // xmm, ymm
constexpr std::uint64_t kAvx512State = 0xe0 | kAvxState;  // opmask, upper halves of zmm0-15, zmm16-31
constexpr int kTileDataBit = 18;
constexpr std::uint64_t kAmxState = 0x3 << (kTileDataBit - 1);  // configuration and data of tiles

// Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E.
constexpr std::array kFeatures{
    Feature{"avx", &X86Registers::leaf1_ecx, 28, State::avx},
    Feature{"fma", &X86Registers::leaf1_ecx, 12, State::avx},
    Feature{"f16c", &X86Registers::leaf1_ecx, 29, State::avx},
    Feature{"bmi1", &X86Registers::leaf7_ebx, 3, State::none},
    Feature{"bmi2", &X86Registers::leaf7_ebx, 8, State::none},
    Feature{"avx2", &X86Registers::leaf7_ebx, 5, State::avx},
    Feature{"avx_vnni", &X86Registers::leaf7_1_eax, 4, State::avx},
    Feature{"avx512f", &X86Registers::leaf7_ebx, 16, State::avx512},
    Feature{"avx512dq", &X86Registers::leaf7_ebx, 17, State::avx512},
    Feature{"avx512cd", &X86Registers::leaf7_ebx, 28, State::avx512},
    Feature{"avx512bw", &X86Registers::leaf7_ebx, 30, State::avx512},
    Feature{"avx512vl", &X86Registers::leaf7_ebx, 31, State::avx512},
    Feature{"avx512vbmi", &X86Registers::leaf7_ecx, 1, State::avx512},
    Feature{"avx512_vbmi2", &X86Registers::leaf7_ecx, 6, State::avx512},
    Feature{"avx512_vnni", &X86Registers::leaf7_ecx, 11, State::avx512},
    Feature{"avx512_bf16", &X86Registers::leaf7_1_eax, 5, State::avx512},
    Feature{"avx512_fp16", &X86Registers::leaf7_edx, 23, State::avx512},
    Feature{"amx_tile", &X86Registers::leaf7_edx, 24, State::amx},
    Feature{"amx_int8", &X86Registers::leaf7_edx, 25, State::amx},
};

struct Requirement {
  std::string_view isa;
  std::vector<std::string_view> features;
};

bool state_is_saved(State state, std::uint64_t xcr0) {
  std::uint64_t needed = 0;
  switch (state) {
    case State::none: break;
    case State::avx: needed = kAvxState; break;
    case State::avx512: needed = kAvx512State; break;
    case State::amx: needed = kAmxState; break;
  }
  return (xcr0 & needed) == needed;
}

#if defined(__x86_64__)
// XGETBV by hand: the intrinsic would need this file to be compiled with -mxsave.
std::uint64_t read_xcr0() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

X86Registers read_registers() {
  X86Registers registers;
  std::uint32_t eax = 0;
  std::uint32_t ebx = 0;
  std::uint32_t ecx = 0;
  std::uint32_t edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
    registers.leaf1_ecx = ecx;
  }
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    const std::uint32_t last_subleaf = eax;
    registers.leaf7_ebx = ebx;
    registers.leaf7_ecx = ecx;
    registers.leaf7_edx = edx;
    if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
      registers.leaf7_1_eax = eax;
    }
  }
  if ((registers.leaf1_ecx >> kOsxsaveBit) & 1U) {
    registers.xcr0 = read_xcr0();
  }
  return registers;
}
#endif

#if defined(__aarch64__)
// Linux, Documentation/arch/arm64/elf_hwcaps.rst. Headers of older systems lack the second name.
constexpr unsigned long kHasDotProduct = 1UL << 20;  // of AT_HWCAP
constexpr unsigned long kHasI8mm = 1UL << 13;        // of AT_HWCAP2

std::vector<std::string> aarch64_features() {
  std::vector<std::string> names{"neon"};  // part of the architecture's baseline
#if defined(__linux__)
  if ((getauxval(AT_HWCAP) & kHasDotProduct) != 0) names.emplace_back("asimddp");
  if ((getauxval(AT_HWCAP2) & kHasI8mm) != 0) names.emplace_back("i8mm");
#elif defined(__APPLE__)
  names.emplace_back("asimddp");  // of every processor that runs macOS
#endif
  return names;
}
#endif

// Requirements are exactly the feature flags that the kernels of each instruction set are compiled with.
std::vector<std::string> supported(const std::vector<Requirement>& requirements,
                                   const std::vector<std::string>& features) {
  std::vector<std::string> isas;
  for (const Requirement& requirement : requirements) {
    const bool suffices = std::ranges::all_of(requirement.features, [&](std::string_view needed) {
      return std::ranges::find(features, needed) != features.end();
    });
    if (suffices) isas.emplace_back(requirement.isa);
  }
  isas.emplace_back("portable");
  return isas;
}

}  // namespace

std::vector<std::string> decode_x86(const X86Registers& registers) {
  const bool has_xcr0 = (registers.leaf1_ecx >> kOsxsaveBit) & 1U;
  const std::uint64_t xcr0 = has_xcr0 ? registers.xcr0 : 0;
  std::vector<std::string> names;
  for (const Feature& feature : kFeatures) {
    const bool has_bit = (registers.*feature.word >> feature.bit) & 1U;
    if (has_bit && state_is_saved(feature.state, xcr0)) {
      names.emplace_back(feature.name);
    }
  }
  return names;
}

std::vector<std::string> cpu_features() {
#if defined(__x86_64__)
  return decode_x86(read_registers());
#elif defined(__aarch64__)
  return aarch64_features();
#else
  return {};
#endif
}

std::vector<std::string> isas_of(const std::vector<std::string>& features) {
  return supported({{"avx512", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"}},
                    {"avx2", {"avx2", "fma", "f16c"}},
                    {"neon", {"neon"}}},
                   features);
}

std::vector<std::string> int8_isas_of(const std::vector<std::string>& features) {
  return supported(
      {{"avx512_vnni", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx2", "fma", "f16c"}},
       {"avx_vnni", {"avx2", "fma", "f16c", "avx_vnni"}},
       {"avx2_madd", {"avx2", "fma", "f16c"}},
       {"neon_i8mm", {"neon", "asimddp", "i8mm"}},
       {"neon_dot", {"neon", "asimddp"}},
       {"neon_mull", {"neon"}}},
      features);
}

bool may_use_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  // Linux, Documentation/arch/x86/xstate.rst. Headers of older systems lack the name.
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileDataBit) == 0;
  return granted;
#else
  return false;
#endif
}

}  // namespace sift::isa
