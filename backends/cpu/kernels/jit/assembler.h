// Encodes the few x86-64 and AVX-512 instructions that generated code consists of; formats and their names are those of
// Intel's Software Developer's Manual, volume 2, chapter 2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace sift::cpu {

// General registers that take neither a REX prefix bit nor a SIB byte.
enum class Gpr : std::uint8_t { rax = 0, rcx = 1, rdx = 2, rbx = 3, rsi = 6, rdi = 7 };

// A vector register zmm0 to zmm31.
using Zmm = int;

struct Memory {
  Gpr base;
  std::int32_t displacement;
};

class Assembler {
 public:
  // Writes to `at` and on; who calls sees to it that there is room.
  explicit Assembler(std::byte* at) : at_(at) {}

  std::byte* at() const { return at_; }

  void load_aligned(Zmm to, Memory from) { vector({kMap0F, kNone, 0x28, kBlock}, to, 0, from); }        // vmovaps
  void store_aligned(Memory to, Zmm from) { vector({kMap0F, kNone, 0x29, kBlock}, from, 0, to); }       // vmovaps
  void store(Memory to, Zmm from) { vector({kMap0F, kNone, 0x11, kBlock}, from, 0, to); }               // vmovups
  void stream(Memory to, Zmm from) { vector({kMap0F, kNone, 0x2B, kBlock}, from, 0, to); }              // vmovntps
  void broadcast(Zmm to, Memory from) { vector({kMap0F38, k66, 0x18, sizeof(float)}, to, 0, from); }    // vbroadcastss
  void add(Zmm to, Zmm a, Memory b) { vector({kMap0F, kNone, 0x58, kBlock}, to, a, b); }                // vaddps
  void max(Zmm to, Zmm a, Zmm b) { vector({kMap0F, kNone, 0x5F, kBlock}, to, a, b); }                   // vmaxps
  void min(Zmm to, Zmm a, Zmm b) { vector({kMap0F, kNone, 0x5D, kBlock}, to, a, b); }                   // vminps
  // sum += a * b, b a float for all lanes: vfmadd231ps zmm, zmm, m32{1to16}
  void multiply_add(Zmm sum, Zmm a, Memory b) {
    vector({kMap0F38, k66, 0xB8, sizeof(float), true}, sum, a, b);
  }
  void prefetch(Memory from) { bytes({0x0F, 0x18, 0x80 | 2 << 3 | low(from.base)}), imm32(from.displacement); }  // t1
  void clear_upper() { bytes({0xC5, 0xF8, 0x77}); }  // vzeroupper

  void add(Gpr to, std::int32_t value) { bytes({0x48, 0x81, 0xC0 | low(to)}), imm32(value); }
  void subtract(Gpr from, Gpr value) { bytes({0x48, 0x29, 0xC0 | low(value) << 3 | low(from)}); }
  void move(Gpr to, Gpr from) { bytes({0x48, 0x89, 0xC0 | low(from) << 3 | low(to)}); }
  void load(Gpr to, Memory from) { bytes({0x48, 0x8B, 0x80 | low(to) << 3 | low(from.base)}), imm32(from.displacement); }
  void jump(Memory to) { bytes({0xFF, 0x80 | 4 << 3 | low(to.base)}), imm32(to.displacement); }
  void ret() { bytes({0xC3}); }

  // Displacements that take one byte in a vector instruction: multiples of `unit` in [-128, 128) of them.
  static bool is_near(std::ptrdiff_t displacement, std::ptrdiff_t unit) {
    return displacement % unit == 0 && displacement / unit >= -128 && displacement / unit < 128;
  }

  static constexpr int kBlock = 64;  // bytes of a vector register

 private:
  static constexpr int kMap0F = 1;
  static constexpr int kMap0F38 = 2;
  static constexpr int kNone = 0;  // prefixes
  static constexpr int k66 = 1;

  struct Operation {
    int map;
    int prefix;
    int opcode;
    int unit;  // bytes that a displacement of one byte counts in
    bool broadcasts = false;
  };

  static constexpr int low(Gpr reg) { return static_cast<int>(reg); }

  void bytes(std::initializer_list<int> values) {
    for (const int value : values) *at_++ = static_cast<std::byte>(value);
  }
  void imm32(std::int32_t value) {
    std::memcpy(at_, &value, sizeof(value));
    at_ += sizeof(value);
  }

  // The EVEX prefix and the opcode. Registers' fourth and fifth bits are stored inverted; `b4` and `b3` are those of the
  // register or base in ModRM.rm.
  void evex(const Operation& op, Zmm reg, Zmm second, int b4, int b3) {
    const int r = reg >> 3 & 1;
    const int r2 = reg >> 4 & 1;
    const int v2 = second >> 4 & 1;
    bytes({0x62, (r ^ 1) << 7 | (b4 ^ 1) << 6 | (b3 ^ 1) << 5 | (r2 ^ 1) << 4 | op.map,
           (~second & 15) << 3 | 1 << 2 | op.prefix,
           2 << 5 | static_cast<int>(op.broadcasts) << 4 | (v2 ^ 1) << 3, op.opcode});
  }
  void vector(const Operation& op, Zmm reg, Zmm second, Memory memory) {
    evex(op, reg, second, 0, 0);
    const int base = (reg & 7) << 3 | low(memory.base);
    if (is_near(memory.displacement, op.unit)) {
      bytes({0x40 | base, memory.displacement / op.unit & 0xFF});
    } else {
      bytes({0x80 | base}), imm32(memory.displacement);
    }
  }
  void vector(const Operation& op, Zmm reg, Zmm second, Zmm third) {
    evex(op, reg, second, third >> 4 & 1, third >> 3 & 1);
    bytes({0xC0 | (reg & 7) << 3 | (third & 7)});
  }

  std::byte* at_;
};

}  // namespace sift::cpu
