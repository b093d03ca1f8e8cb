#include <cstddef>
#include <cstring>
#include <vector>

#include "jit/generated_rows.h"
#include "jit/x86_emitter.h"
#include "suites.h"

namespace sift::cpu {
namespace {

// Against what GNU as 2.40 makes of the same instructions.
void test_encodings() {
  std::byte written[500];
  X86Emitter code(written);
  code.load(31, {Pointer::operands, 8128});
  code.load(28, {Pointer::operands, 8192});
  code.store_aligned({Pointer::place, 64}, 9);
  code.store({Pointer::place, 64}, 17);
  code.store_non_temporal({Pointer::place, -64}, 1);
  code.broadcast(30, {Pointer::place, -512});
  code.add(20, 20, {Pointer::weights, 64});
  code.max(13, 28, 13);
  code.min(26, 29, 26);
  code.multiply_add(27, 31, {Pointer::weights, -512});
  code.multiply_add(12, 3, {Pointer::weights, 2});
  code.prefetch({Pointer::place, 0x12340});
  code.advance(Pointer::operands, 16384);
  code.subtract(Pointer::place, Pointer::step);
  code.move(Pointer::call, Pointer::argument);
  code.load(Pointer::place, {Pointer::call, 0x1234});
  code.jump({Pointer::call, 0x1234});
  code.multiply_add(5, 30, 31);
  code.multiply_add_vector(19, 29, {Pointer::argument, 8128});
  code.multiply_add_vector(3, 29, {Pointer::argument, 8192});
  code.clear(17);
  code.set_mask(4, 0xff00);
  code.blend(28, 3, 12, 20);
  code.cross(30, 4, 9, 25, 8);
  code.cross(31, 3, 9, 25, 4);
  code.cross(9, 2, 30, 12, 2);
  code.cross(31, 1, 9, 25, 1);
  code.add(16, 28, 30);
  code.store({Pointer::call, 0x1234}, Pointer::line);
  code.load(Pointer::lines, {Pointer::call, 0x1234});
  const std::byte* const loop = code.at();
  code.count_down(Pointer::lines);
  code.jump_unless_zero(loop);
  code.leave_if_zero();
  code.advance(Pointer::lines, 0x1234);
  code.advance_vector(Pointer::lines);
  code.advance_vector(Pointer::operands);
  code.call(loop);
  code.leave();
  code.set(Pointer::operands, {Pointer::block, 0x1234});
  code.add(Pointer::operands, {Pointer::taps, 0x1234});
  code.count_down(Pointer::units);
  code.jump_if_zero({Pointer::call, 0x1234});
  code.finish();
  code.multiply(17, 17, {Pointer::operands, 64});
  code.multiply_then_add(29, 30, {Pointer::call, 0x1234});
  code.max(5, 5, Address{Pointer::call, -16});
  code.min(20, 20, Address{Pointer::call, 0x1234});
  code.to_floats(9, 27);
  code.to_ints(27, 9);
  code.pack_words(24, 24, 26);
  code.max_bytes(19, 3, {Pointer::call, 64});
  code.mask_ints(29, 29, {Pointer::call, 0x1234});
  code.shuffle_bytes(6, 25, 8);
  code.pack_bytes(27, 3, 17);
  code.add_words(20, 9, 31);
  code.min_bytes(5, 30, {Pointer::call, -64});
  code.shift_right(29, 28, 24);
  code.dot_product(27, 31, {Pointer::weights, -512});
  code.dot_product(27, 3, 31);
  code.load_four(30, {Pointer::weights, -512});
  code.repeat(31, 30, 2);
  code.multiply(9, 17, 30);
  code.multiply_then_add(29, 30, 24);
  code.mask_ints(31, 29, 24);
  code.jump(loop);
  const int expected[]{
      0x62, 0x61, 0x7c, 0x48, 0x28, 0x7f, 0x7f,                    // vmovaps 0x1fc0(%rdi),%zmm31
      0x62, 0x61, 0x7c, 0x48, 0x28, 0xa7, 0x00, 0x20, 0x00, 0x00,  // vmovaps 0x2000(%rdi),%zmm28
      0x62, 0x71, 0x7c, 0x48, 0x29, 0x4a, 0x01,                    // vmovaps %zmm9,0x40(%rdx)
      0x62, 0xe1, 0x7c, 0x48, 0x11, 0x4a, 0x01,                    // vmovups %zmm17,0x40(%rdx)
      0x62, 0xf1, 0x7c, 0x48, 0x2b, 0x4a, 0xff,                    // vmovntps %zmm1,-0x40(%rdx)
      0x62, 0x62, 0x7d, 0x48, 0x18, 0x72, 0x80,                    // vbroadcastss -0x200(%rdx),%zmm30
      0x62, 0xe1, 0x5c, 0x40, 0x58, 0x66, 0x01,                    // vaddps 0x40(%rsi),%zmm20,%zmm20
      0x62, 0x51, 0x1c, 0x40, 0x5f, 0xed,                          // vmaxps %zmm13,%zmm28,%zmm13
      0x62, 0x01, 0x14, 0x40, 0x5d, 0xd2,                          // vminps %zmm26,%zmm29,%zmm26
      0x62, 0x62, 0x05, 0x50, 0xb8, 0x5e, 0x80,                    // vfmadd231ps -0x200(%rsi){1to16},%zmm31,%zmm27
      0x62, 0x72, 0x65, 0x58, 0xb8, 0xa6, 0x02, 0x00, 0x00, 0x00,  // vfmadd231ps 0x2(%rsi){1to16},%zmm3,%zmm12
      0x0f, 0x18, 0x92, 0x40, 0x23, 0x01, 0x00,                    // prefetcht1 0x12340(%rdx)
      0x48, 0x8d, 0xbf, 0x00, 0x40, 0x00, 0x00,                    // lea 0x4000(%rdi),%rdi
      0x48, 0x29, 0xc2,                                            // sub %rax,%rdx
      0x48, 0x89, 0xf9,                                            // mov %rdi,%rcx
      0x48, 0x8b, 0x91, 0x34, 0x12, 0x00, 0x00,                    // mov 0x1234(%rcx),%rdx
      0xff, 0xa1, 0x34, 0x12, 0x00, 0x00,                          // jmp *0x1234(%rcx)
      0x62, 0x92, 0x0d, 0x40, 0xb8, 0xef,                          // vfmadd231ps %zmm31,%zmm30,%zmm5
      0x62, 0xe2, 0x15, 0x40, 0xb8, 0x5f, 0x7f,                    // vfmadd231ps 0x1fc0(%rdi),%zmm29,%zmm19
      0x62, 0xf2, 0x15, 0x40, 0xb8, 0x9f, 0x00, 0x20, 0x00, 0x00,  // vfmadd231ps 0x2000(%rdi),%zmm29,%zmm3
      0x62, 0xa1, 0x75, 0x40, 0xef, 0xc9,                          // vpxord %zmm17,%zmm17,%zmm17
      0xb8, 0x00, 0xff, 0x00, 0x00,                                // mov $0xff00,%eax
      0xc5, 0xf8, 0x92, 0xe0,                                      // kmovw %eax,%k4
      0x62, 0x22, 0x1d, 0x4b, 0x65, 0xe4,                          // vblendmps %zmm20,%zmm12,%zmm28{%k3}
      0x62, 0x03, 0x35, 0x48, 0x23, 0xf1, 0x4e,                    // vshuff32x4 $0x4e,%zmm25,%zmm9,%zmm30
      0x62, 0x42, 0x35, 0x43, 0x65, 0xf9,                          // vblendmps %zmm9,%zmm25,%zmm31{%k3}
      0x62, 0x03, 0x05, 0x40, 0x23, 0xff, 0xb1,                    // vshuff32x4 $0xb1,%zmm31,%zmm31,%zmm31
      0x62, 0x51, 0x0c, 0x40, 0xc6, 0xcc, 0x4e,                    // vshufps $0x4e,%zmm12,%zmm30,%zmm9
      0x62, 0x42, 0x35, 0x41, 0x65, 0xf9,                          // vblendmps %zmm9,%zmm25,%zmm31{%k1}
      0x62, 0x03, 0x7d, 0x48, 0x04, 0xff, 0xb1,                    // vpermilps $0xb1,%zmm31,%zmm31
      0x62, 0x81, 0x1c, 0x40, 0x58, 0xc6,                          // vaddps %zmm30,%zmm28,%zmm16
      0x48, 0x89, 0x91, 0x34, 0x12, 0x00, 0x00,                    // mov %rdx,0x1234(%rcx)
      0x4c, 0x8b, 0x81, 0x34, 0x12, 0x00, 0x00,                    // mov 0x1234(%rcx),%r8
      0x49, 0xff, 0xc8,                                            // dec %r8
      0x0f, 0x85, 0xf7, 0xff, 0xff, 0xff,                          // jne to the dec
      0x75, 0x01,                                                  // jne over the ret
      0xc3,                                                        // ret
      0x4d, 0x8d, 0x80, 0x34, 0x12, 0x00, 0x00,                    // lea 0x1234(%r8),%r8
      0x49, 0x83, 0xc0, 0x40,                                      // add $0x40,%r8
      0x48, 0x83, 0xc7, 0x40,                                      // add $0x40,%rdi
      0xe8, 0xe0, 0xff, 0xff, 0xff,                                // call to the dec
      0xc3,                                                        // ret
      0x49, 0x8d, 0xba, 0x34, 0x12, 0x00, 0x00,                    // lea 0x1234(%r10),%rdi
      0x49, 0x03, 0xb9, 0x34, 0x12, 0x00, 0x00,                    // add 0x1234(%r9),%rdi
      0x49, 0xff, 0xc8,                                            // dec %r8
      0x75, 0x06,                                                  // jne over the jmp
      0xff, 0xa1, 0x34, 0x12, 0x00, 0x00,                          // jmp *0x1234(%rcx)
      0xc5, 0xf8, 0x77,                                            // vzeroupper
      0xc3,                                                        // ret
      0x62, 0xe1, 0x74, 0x50, 0x59, 0x4f, 0x10,                    // vmulps 0x40(%rdi){1to16},%zmm17,%zmm17
      0x62, 0x62, 0x0d, 0x50, 0x98, 0xa9, 0x34, 0x12, 0x00, 0x00,  // vfmadd132ps 0x1234(%rcx){1to16},%zmm30,%zmm29
      0x62, 0xf1, 0x54, 0x58, 0x5f, 0x69, 0xfc,                    // vmaxps -0x10(%rcx){1to16},%zmm5,%zmm5
      0x62, 0xe1, 0x5c, 0x50, 0x5d, 0xa1, 0x34, 0x12, 0x00, 0x00,  // vminps 0x1234(%rcx){1to16},%zmm20,%zmm20
      0x62, 0x11, 0x7c, 0x48, 0x5b, 0xcb,                          // vcvtdq2ps %zmm27,%zmm9
      0x62, 0x41, 0x7d, 0x48, 0x5b, 0xd9,                          // vcvtps2dq %zmm9,%zmm27
      0x62, 0x01, 0x3d, 0x40, 0x6b, 0xc2,                          // vpackssdw %zmm26,%zmm24,%zmm24
      0x62, 0xe1, 0x65, 0x48, 0xde, 0x59, 0x01,                    // vpmaxub 0x40(%rcx),%zmm3,%zmm19
      0x62, 0x61, 0x15, 0x50, 0xdb, 0xa9, 0x34, 0x12, 0x00, 0x00,  // vpandd 0x1234(%rcx){1to16},%zmm29,%zmm29
      0x62, 0xd2, 0x35, 0x40, 0x00, 0xf0,                          // vpshufb %zmm8,%zmm25,%zmm6
      0x62, 0x21, 0x65, 0x48, 0x67, 0xd9,                          // vpackuswb %zmm17,%zmm3,%zmm27
      0x62, 0x81, 0x35, 0x48, 0xed, 0xe7,                          // vpaddsw %zmm31,%zmm9,%zmm20
      0x62, 0xf1, 0x0d, 0x40, 0xda, 0x69, 0xff,                    // vpminub -0x40(%rcx),%zmm30,%zmm5
      0x62, 0x91, 0x15, 0x40, 0x72, 0xd4, 0x18,                    // vpsrld $0x18,%zmm28,%zmm29
      0x62, 0x62, 0x05, 0x50, 0x50, 0x5e, 0x80,                    // vpdpbusd -0x200(%rsi){1to16},%zmm31,%zmm27
      0x62, 0x02, 0x65, 0x48, 0x50, 0xdf,                          // vpdpbusd %zmm31,%zmm3,%zmm27
      0x62, 0x62, 0x7d, 0x48, 0x5a, 0x76, 0xe0,                    // vbroadcasti32x4 -0x200(%rsi),%zmm30
      0x62, 0x01, 0x7d, 0x48, 0x70, 0xfe, 0xaa,                    // vpshufd $0xaa,%zmm30,%zmm31
      0x62, 0x11, 0x74, 0x40, 0x59, 0xce,                          // vmulps %zmm30,%zmm17,%zmm9
      0x62, 0x02, 0x0d, 0x40, 0x98, 0xe8,                          // vfmadd132ps %zmm24,%zmm30,%zmm29
      0x62, 0x01, 0x15, 0x40, 0xdb, 0xf8,                          // vpandd %zmm24,%zmm29,%zmm31
      0xe9, 0x00, 0x00, 0x00, 0x00,                                // jmp to the dec
  };
  bool same = code.at() - written == std::ssize(expected);
  for (std::size_t i = 0; same && i + sizeof(std::int32_t) < std::size(expected); ++i)
    same = written[i] == static_cast<std::byte>(expected[i]);
  std::int32_t distance = 0;
  std::memcpy(&distance, code.at() - sizeof distance, sizeof distance);
  check(same && code.at() + distance == loop, "encodings");
}

// A body says what it was written from, and fits where it was said to.
void test_bodies(Random& random, std::uint32_t taps, CodeWeight weight) {
  std::vector<CodeEntry> entries;
  for (std::uint32_t tap = 0; tap < taps; ++tap) {
    std::uint32_t channel = 0;
    for (int column = 0; column < 300; ++column) {
      channel += static_cast<std::uint32_t>(random.chance(0.02) ? random.between(1, 9000) : random.between(1, 3));
      for (std::uint32_t row = 0; row < kCodeRows; ++row) {
        if (random.chance(0.1)) entries.push_back({tap, channel, row});
      }
    }
  }
  std::vector<std::byte> written(most_body_bytes(entries.size(), 300 * std::size_t{taps}, weight));
  CodeUnit unit{};
  const std::byte* const end = write_body(written.data(), entries, taps > 1, unit, weight);
  check(end <= written.data() + written.size(), "bodies have room");
  check(unit.body == written.data(), "bodies are where they were written");
  check(read_body(written.data()) == entries, "bodies are read back");
  const std::byte* const end_of_none = write_body(written.data(), {}, taps > 1, unit, weight);
  check(end_of_none <= written.data() + most_body_bytes(0, 0), "bodies of nothing have room");
  check(read_body(written.data()).empty(), "bodies of nothing are read back");
}

}  // namespace

void test_generated_code() {
  test_encodings();
  Random random(2);
  for (const std::uint32_t taps : {1U, 5U}) {
    for (const CodeWeight weight : {CodeWeight::single, CodeWeight::quad, CodeWeight::quad_in_fours}) {
      test_bodies(random, taps, weight);
    }
  }
}

}  // namespace sift::cpu
