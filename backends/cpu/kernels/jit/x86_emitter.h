// Encodes the few x86-64 and AVX-512 instructions that generated code consists of; formats and their names are those of
// Intel's Software Developer's Manual, volume 2, chapter 2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "jit/emitter.h"

namespace sift::cpu {

class X86Emitter {
 public:
  static constexpr int kVectorBytes = 64;
  static constexpr int kVectorRegisters = 32;
  static constexpr int kNearSteps = 128;  // displacements of one byte
  static constexpr std::size_t kShortBytes = 7;
  static constexpr std::size_t kLongBytes = 10;
  static constexpr std::size_t kRegisterBytes = 6;

  explicit X86Emitter(std::byte* at) : at_(at) {}

  std::byte* at() const { return at_; }

  // vmovaps
  void load(VectorRegister to, Address from) { vector({kMap0F, kNone, kLoadAligned, kVectorBytes}, to, 0, from); }
  void store_aligned(Address to, VectorRegister from) { vector({kMap0F, kNone, 0x29, kVectorBytes}, from, 0, to); }
  // vmovups
  void store(Address to, VectorRegister from) { vector({kMap0F, kNone, 0x11, kVectorBytes}, from, 0, to); }
  // vmovntps
  void store_non_temporal(Address to, VectorRegister from) { vector({kMap0F, kNone, 0x2B, kVectorBytes}, from, 0, to); }
  // vbroadcastss
  void broadcast(VectorRegister to, Address from) { vector({kMap0F38, k66, 0x18, sizeof(float)}, to, 0, from); }
  // vaddps
  void add(VectorRegister to, VectorRegister a, Address b) { vector({kMap0F, kNone, 0x58, kVectorBytes}, to, a, b); }
  // vmaxps, vminps: of a NaN and another operand these take the second
  void max(VectorRegister to, VectorRegister a, VectorRegister b) {
    vector({kMap0F, kNone, 0x5F, kVectorBytes}, to, a, b);
  }
  void min(VectorRegister to, VectorRegister a, VectorRegister b) {
    vector({kMap0F, kNone, 0x5D, kVectorBytes}, to, a, b);
  }
  // vfmadd231ps zmm, zmm, m32{1to16}
  void multiply_add(VectorRegister sum, VectorRegister a, Address b) {
    vector({kMap0F38, k66, 0xB8, sizeof(float), true}, sum, a, b);
  }
  // vfmadd231ps
  void multiply_add(VectorRegister sum, VectorRegister a, VectorRegister b) {
    vector({kMap0F38, k66, 0xB8, kVectorBytes}, sum, a, b);
  }
  void multiply_add_vector(VectorRegister sum, VectorRegister a, Address b) {
    vector({kMap0F38, k66, 0xB8, kVectorBytes}, sum, a, b);
  }
  // vmulps
  void multiply(VectorRegister to, VectorRegister a, VectorRegister b) {
    vector({kMap0F, kNone, 0x59, kVectorBytes}, to, a, b);
  }
  // vmulps, vaddps, vfmadd132ps, vmaxps, vminps with m32{1to16}
  void multiply(VectorRegister to, VectorRegister a, Address b) {
    vector({kMap0F, kNone, 0x59, sizeof(float), true}, to, a, b);
  }
  void add_float(VectorRegister to, VectorRegister a, Address b) {
    vector({kMap0F, kNone, 0x58, sizeof(float), true}, to, a, b);
  }
  void multiply_then_add(VectorRegister to, VectorRegister a, Address b) {
    vector({kMap0F38, k66, 0x98, sizeof(float), true}, to, a, b);
  }
  // vfmadd132ps
  void multiply_then_add(VectorRegister to, VectorRegister a, VectorRegister b) {
    vector({kMap0F38, k66, 0x98, kVectorBytes}, to, a, b);
  }
  void max(VectorRegister to, VectorRegister a, Address b) {
    vector({kMap0F, kNone, 0x5F, sizeof(float), true}, to, a, b);
  }
  void min(VectorRegister to, VectorRegister a, Address b) {
    vector({kMap0F, kNone, 0x5D, sizeof(float), true}, to, a, b);
  }
  // vcvtdq2ps, vcvtps2dq
  void to_floats(VectorRegister to, VectorRegister from) { vector({kMap0F, kNone, 0x5B, kVectorBytes}, to, 0, from); }
  void to_ints(VectorRegister to, VectorRegister from) { vector({kMap0F, k66, 0x5B, kVectorBytes}, to, 0, from); }
  // vpandd with m32{1to16}
  void mask_ints(VectorRegister to, VectorRegister a, Address b) {
    vector({kMap0F, k66, 0xDB, sizeof(std::int32_t), true}, to, a, b);
  }
  // vpandd
  void mask_ints(VectorRegister to, VectorRegister a, VectorRegister b) {
    vector({kMap0F, k66, 0xDB, kVectorBytes}, to, a, b);
  }
  // vpackssdw, vpackuswb, vpaddsw; vpmaxub and vpminub; vpshufb: of AVX-512 BW
  void pack_words(VectorRegister to, VectorRegister a, VectorRegister b) {
    vector({kMap0F, k66, 0x6B, kVectorBytes}, to, a, b);
  }
  void pack_bytes(VectorRegister to, VectorRegister a, VectorRegister b) {
    vector({kMap0F, k66, 0x67, kVectorBytes}, to, a, b);
  }
  void add_words(VectorRegister to, VectorRegister a, VectorRegister b) {
    vector({kMap0F, k66, 0xED, kVectorBytes}, to, a, b);
  }
  void max_bytes(VectorRegister to, VectorRegister a, Address b) {
    vector({kMap0F, k66, 0xDE, kVectorBytes}, to, a, b);
  }
  void min_bytes(VectorRegister to, VectorRegister a, Address b) {
    vector({kMap0F, k66, 0xDA, kVectorBytes}, to, a, b);
  }
  void shuffle_bytes(VectorRegister to, VectorRegister a, VectorRegister places) {
    vector({kMap0F38, k66, 0x00, kVectorBytes}, to, a, places);
  }
  // vpsrld: ModRM.reg is part of the opcode
  void shift_right(VectorRegister to, VectorRegister from, int bits) {
    vector({kMap0F, k66, 0x72, kVectorBytes}, 2, to, from), bytes({bits});
  }
  // vpdpbusd zmm, zmm, m32{1to16}, of AVX-512 VNNI
  void dot_product(VectorRegister sum, VectorRegister a, Address b) {
    vector({kMap0F38, k66, kDotProduct, sizeof(std::int32_t), true}, sum, a, b);
  }
  // vpdpbusd
  void dot_product(VectorRegister sum, VectorRegister a, VectorRegister b) {
    vector({kMap0F38, k66, kDotProduct, kVectorBytes}, sum, a, b);
  }
  // vbroadcasti32x4
  void load_four(VectorRegister to, Address from) { vector({kMap0F38, k66, kLoadFour, kFourBytes}, to, 0, from); }
  // vpshufd
  void repeat(VectorRegister to, VectorRegister from, int word) {
    vector({kMap0F, k66, kRepeat, kVectorBytes}, to, 0, from), bytes({word * 0b01'01'01'01});
  }
  // vaddps
  void add(VectorRegister to, VectorRegister a, VectorRegister b) {
    vector({kMap0F, kNone, 0x58, kVectorBytes}, to, a, b);
  }
  // vpxord
  void clear(VectorRegister to) { vector({kMap0F, k66, 0xEF, kVectorBytes}, to, to, to); }
  // mov to eax, kmovw
  void set_mask(MaskRegister to, std::uint16_t lanes) {
    bytes({0xB8}), imm32(lanes), bytes({0xC5, 0xF8, 0x92, 0xC0 | to << 3});
  }
  // vblendmps
  void blend(VectorRegister to, MaskRegister mask, VectorRegister a, VectorRegister b) {
    vector({.map = kMap0F38, .prefix = k66, .opcode = 0x65, .unit = kVectorBytes, .mask = mask}, to, a, b);
  }
  // vshuff32x4, vshufps; of other lanes than these take from the two, vblendmps before vshuff32x4 or vpermilps
  void cross(VectorRegister to, MaskRegister mask, VectorRegister a, VectorRegister b, int step) {
    if (step == 8) {
      vector({kMap0F3A, k66, 0x23, kVectorBytes}, to, a, b), bytes({0b01'00'11'10});
    } else if (step == 2) {
      vector({kMap0F, kNone, 0xC6, kVectorBytes}, to, a, b), bytes({0b01'00'11'10});
    } else {
      const bool moves_fours = step == 4;
      blend(to, mask, b, a);
      vector({kMap0F3A, k66, moves_fours ? 0x23 : 0x04, kVectorBytes}, to, moves_fours ? to : 0, to);
      bytes({0b10'11'00'01});
    }
  }
  // prefetcht1
  void prefetch(Address from) { bytes({0x0F, 0x18, 0x80 | 2 << 3 | low(from.base)}), imm32(from.displacement); }

  // lea, which leaves the flags as they are
  void set(Pointer to, Address address) { pointer(0x8D, to, address); }
  void advance(Pointer to, std::int32_t value) { set(to, {to, value}); }
  void advance_vector(Pointer to) { bytes({rex(0, to), 0x83, 0xC0 | low(to), kVectorBytes}); }
  void subtract(Pointer from, Pointer value) { bytes({0x48, 0x29, 0xC0 | low(value) << 3 | low(from)}); }
  void move(Pointer to, Pointer from) { bytes({0x48, 0x89, 0xC0 | low(from) << 3 | low(to)}); }
  void load(Pointer to, Address from) { pointer(0x8B, to, from); }
  void store(Address to, Pointer from) { pointer(0x89, from, to); }
  void add(Pointer to, Address value) { pointer(0x03, to, value); }
  void jump(Address to) { bytes({0xFF, 0x80 | 4 << 3 | low(to.base)}), imm32(to.displacement); }
  void jump(const std::byte* to) { bytes({0xE9}), relative(to); }
  void count_down(Pointer count) { bytes({rex(0, count), 0xFF, 0xC0 | 1 << 3 | low(count)}); }  // dec
  void jump_unless_zero(const std::byte* to) { bytes({0x0F, 0x85}), relative(to); }
  void jump_if_zero(Address to) { bytes({0x75, kJumpBytes}), jump(to); }
  void leave_if_zero() { bytes({0x75, 1}), leave(); }
  void call(const std::byte* to) { bytes({0xE8}), relative(to); }
  void leave() { bytes({0xC3}); }
  void finish() { bytes({0xC5, 0xF8, 0x77, 0xC3}); }  // vzeroupper, ret

  static Instruction decode(const std::byte* at) {
    using Kind = Instruction::Kind;
    const auto byte = [&](int i) { return static_cast<int>(at[i]); };
    if (byte(0) == 0x0F) return {Kind::other, kShortBytes};
    if (byte(0) == 0x49 && byte(1) == 0xFF) return {Kind::other, kCountBytes};
    if (byte(0) == 0x48 || byte(0) == 0x49) {
      std::int32_t value;
      std::memcpy(&value, at + 3, sizeof(value));
      const bool is_operands = (byte(2) & 7) == low(Pointer::operands);
      const Kind kind = byte(0) == 0x48 ? Kind::advance : byte(1) == 0x03 ? Kind::add_tap : Kind::set_operands;
      return {kind, kShortBytes, is_operands ? Pointer::operands : Pointer::weights, value};
    }
    if (byte(0) != 0x62) return {Kind::end, 0};
    if (byte(4) == kLoadAligned) {
      return {Kind::load, kShortBytes, Pointer::operands, static_cast<std::int8_t>(byte(6)) * kVectorBytes};
    }
    if (byte(4) == kLoadFour || byte(4) == kRepeat) return {Kind::other, kShortBytes};
    const bool is_of_registers = (byte(5) & 0xC0) == 0xC0;
    // The register of the sums is in inverted bits of the prefix and in ModRM.reg.
    const int prefix = ~byte(1);
    return {.kind = Kind::multiply_add,
            .bytes = is_of_registers ? kRegisterBytes : kShortBytes,
            .sum = (prefix >> 4 & 1) << 4 | (prefix >> 7 & 1) << 3 | (byte(5) >> 3 & 7)};
  }

 private:
  static constexpr int kMap0F = 1;
  static constexpr int kMap0F38 = 2;
  static constexpr int kMap0F3A = 3;
  static constexpr int kNone = 0;  // prefixes
  static constexpr int k66 = 1;
  static constexpr int kLoadAligned = 0x28;  // opcodes
  static constexpr int kLoadFour = 0x5A;
  static constexpr int kRepeat = 0x70;
  static constexpr int kDotProduct = 0x50;
  static constexpr int kFourBytes = 16;
  static constexpr int kJumpBytes = 6;
  static constexpr std::size_t kCountBytes = 3;

  struct Operation {
    int map;
    int prefix;
    int opcode;
    int unit;  // bytes that a displacement of one byte counts in
    bool broadcasts = false;
    MaskRegister mask = 0;
  };

  // Numbers of general registers that take no SIB byte and, but for the last, no bit of a REX prefix.
  enum Gpr : int { rax = 0, rcx = 1, rdx = 2, rsi = 6, rdi = 7, r8 = 8, r9 = 9, r10 = 10 };

  // In the order of Pointer. As the System V ABI has it, the argument is in rdi.
  static constexpr std::array<int, 17> kRegisters{rdi, rcx, rdi, rsi, rax, rdx, rdx, rax, rsi,
                                                  r10, r9,  r8,  rsi, rax, rdx, r8,  rdx};
  static constexpr int number(Pointer pointer) { return kRegisters[static_cast<std::size_t>(pointer)]; }
  static constexpr int low(Pointer pointer) { return number(pointer) & 7; }
  // Of 64 bits; the numbers of the registers in ModRM.reg and ModRM.rm have a bit in it.
  static constexpr int rex(int reg, Pointer rm) { return 0x48 | reg >> 3 << 2 | number(rm) >> 3; }

  void bytes(std::initializer_list<int> values) {
    for (const int value : values) *at_++ = static_cast<std::byte>(value);
  }
  void imm32(std::int32_t value) {
    std::memcpy(at_, &value, sizeof(value));
    at_ += sizeof(value);
  }

  void relative(const std::byte* to) { imm32(static_cast<std::int32_t>(to - (at_ + sizeof(std::int32_t)))); }
  void pointer(int opcode, Pointer reg, Address memory) {
    bytes({rex(number(reg), memory.base), opcode, 0x80 | low(reg) << 3 | low(memory.base)});
    imm32(memory.displacement);
  }

  // The EVEX prefix and the opcode. Registers' fourth and fifth bits are stored inverted; `b4` and `b3` are those of
  // the register or base in ModRM.rm.
  void evex(const Operation& op, VectorRegister reg, VectorRegister second, int b4, int b3) {
    const int r = reg >> 3 & 1;
    const int r2 = reg >> 4 & 1;
    const int v2 = second >> 4 & 1;
    bytes({0x62, (r ^ 1) << 7 | (b4 ^ 1) << 6 | (b3 ^ 1) << 5 | (r2 ^ 1) << 4 | op.map,
           (~second & 15) << 3 | 1 << 2 | op.prefix,
           2 << 5 | static_cast<int>(op.broadcasts) << 4 | (v2 ^ 1) << 3 | op.mask, op.opcode});
  }
  void vector(const Operation& op, VectorRegister reg, VectorRegister second, Address memory) {
    evex(op, reg, second, 0, 0);
    const int base = (reg & 7) << 3 | low(memory.base);
    const int steps = memory.displacement / op.unit;
    if (memory.displacement % op.unit == 0 && steps >= -kNearSteps && steps < kNearSteps) {
      bytes({0x40 | base, steps & 0xFF});
    } else {
      bytes({0x80 | base}), imm32(memory.displacement);
    }
  }
  void vector(const Operation& op, VectorRegister reg, VectorRegister second, VectorRegister third) {
    evex(op, reg, second, third >> 4 & 1, third >> 3 & 1);
    bytes({0xC0 | (reg & 7) << 3 | (third & 7)});
  }

  std::byte* at_;
};

}  // namespace sift::cpu
