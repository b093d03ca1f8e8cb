// The instruction sets that kernels may use on this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sift::isa {

// The results of CPUID and XGETBV on x86-64; zeros for leaves that the processor does not have.
struct X86Registers {
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0;
  std::uint32_t leaf7_ecx = 0;
  std::uint32_t leaf7_edx = 0;
  std::uint32_t leaf7_1_eax = 0;
  std::uint64_t xcr0 = 0;  // register state that the operating system saves; read only if OSXSAVE is set
};

// Names of the usable features, as Linux spells them in /proc/cpuinfo. A vector feature is not usable if the operating
// system does not save its registers.
std::vector<std::string> decode_x86(const X86Registers& registers);

// Names of the usable features of this machine; on aarch64 "neon", and what the system says of "asimddp" and "i8mm".
std::vector<std::string> cpu_features();

// The instruction sets that kernels are built for and that can run with `features`, best first; "portable" is last.
std::vector<std::string> isas_of(const std::vector<std::string>& features);

// The same for the kernels of int8, whose sets are named after how they multiply: "avx512_vnni", "avx_vnni",
// "avx2_madd", "neon_i8mm", "neon_dot", "neon_mull" and "portable".
std::vector<std::string> int8_isas_of(const std::vector<std::string>& features);

// Whether this process may use the registers of AMX, which Linux grants only on request, to all threads and for good.
// False where it refuses, and on other systems.
bool may_use_tiles();

}  // namespace sift::isa
