// What the generator of code (generated_rows.cpp) needs of an instruction set. X86Emitter provides it with AVX-512;
// another instruction set is another class, and a line in generated_rows.cpp that chooses it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace sift::cpu {

// What a general register holds. Two of these may share a register if they are never live together:
// code_ahead and weights_ahead are live only inside bodies, place and step only outside, residual only after weights.
enum class Pointer : std::uint8_t {
  argument,  // of the function that generated code is called as
  call,      // the CodeCall, throughout
  operands,
  weights,
  code_ahead,  // what is prefetched
  weights_ahead,
  place,  // of a row's sums, biases or outputs, from the last row to the first
  step,   // bytes from one row to the next
  residual,
  block,      // operands of the first channel and tap
  taps,       // the table of where taps read
  units,      // that are left
  gradients,  // from here on those of code that sums gradients
  positions,  // that are left of a line
  line,
  lines,  // that are left
  sums,   // live only between lines
};

struct Address {
  Pointer base;
  std::int32_t displacement;
};

// The number of a vector register, and that of a mask.
using VectorRegister = int;
using MaskRegister = int;

// What is read back of generated code.
struct Instruction {
  enum class Kind : std::uint8_t { load, multiply_add, advance, set_operands, add_tap, other, end };
  Kind kind;
  std::size_t bytes;              // of the instruction
  Pointer pointer{};              // advance: what is advanced, operands or else
  std::int32_t displacement = 0;  // load: from the pointer; advance: bytes; set_operands: from the block; add_tap: of
                                  // the tap's place in the table
  VectorRegister sum = 0;         // of multiply_add
};

template <typename T>
concept Emitter =
    requires(T code, std::byte* at, VectorRegister vector, MaskRegister mask, Address address, Pointer pointer) {
      // Writes instructions to `at` and on; the caller provides the room.
      T(at);
      { code.at() } -> std::same_as<std::byte*>;

      { T::kVectorBytes } -> std::convertible_to<int>;
      { T::kVectorRegisters } -> std::convertible_to<int>;
      // Displacements of multiples of the access's size in [-kNearSteps, kNearSteps) make short instructions.
      { T::kNearSteps } -> std::convertible_to<int>;
      // Of a multiplication of registers.
      { T::kRegisterBytes } -> std::convertible_to<std::size_t>;
      {
        T::kShortBytes
      } -> std::convertible_to<std::size_t>;  // prefetch, advance, and load and multiply_add of near addresses
      { T::kLongBytes } -> std::convertible_to<std::size_t>;  // load and multiply_add of others

      code.load(vector, address);                  // aligned
      code.broadcast(vector, address);             // one float to all lanes
      code.multiply_add(vector, vector, address);  // first += second * the float at the address
      code.multiply_add(vector, vector, vector);   // first += second * third
      code.multiply_add_vector(vector, vector, address);
      // first += the products of four adjacent bytes: u8 of the second, s8 of the word at the address
      code.dot_product(vector, vector, address);
      code.dot_product(vector, vector, vector);
      code.load_four(vector, address);         // four words, to each 16 bytes
      code.repeat(vector, vector, int{});      // word i of each 16 bytes to all four of them
      code.multiply(vector, vector, address);  // by the float at the address
      code.multiply(vector, vector, vector);
      code.multiply_then_add(vector, vector, address);  // first = first * the float at the address + second
      code.multiply_then_add(vector, vector, vector);
      code.clear(vector);
      code.set_mask(mask, std::uint16_t{});  // the lanes in it; overwrites `positions`
      // Lane i is that of the last if it is in the mask, of the one before if not. `cross` takes lane i ^ step of
      // these; its mask is the lanes whose number has the bit `step`, which is 1, 2, 4 or 8.
      code.blend(vector, mask, vector, vector);
      code.cross(vector, mask, vector, vector, int{});
      code.add(vector, vector, vector);
      code.add(vector, vector, address);  // first = second + the vector at the address
      code.max(vector, vector, vector);   // first = max(second, third); of a NaN and a bound the third
      code.min(vector, vector, vector);
      code.max(vector, vector, address);  // with the float at the address
      code.min(vector, vector, address);
      code.to_floats(vector, vector);           // of 32-bit integers
      code.to_ints(vector, vector);             // half to even
      code.add_float(vector, vector, address);  // the float at the address to each
      code.mask_ints(vector, vector, address);
      code.mask_ints(vector, vector, vector);
      // Within each 16 bytes: those of the second and then those of the third, in half as many bits, saturated. Words
      // are signed and made of 32 bits; bytes are unsigned and made of words.
      code.pack_words(vector, vector, vector);
      code.pack_bytes(vector, vector, vector);
      code.add_words(vector, vector, vector);  // signed, saturated
      code.max_bytes(vector, vector, address);
      code.min_bytes(vector, vector, address);
      code.shuffle_bytes(vector, vector, vector);  // within each 16 bytes, to the places in the third
      code.shift_right(vector, vector, int{});     // by bits, zeros from the other end
      code.store(address, vector);
      code.store_aligned(address, vector);
      code.store_non_temporal(address, vector);
      code.prefetch(address);

      code.load(pointer, address);
      code.store(address, pointer);
      code.add(pointer, address);             // first += what is stored at the address
      code.set(pointer, address);             // first = the address
      code.move(pointer, pointer);            // first = second
      code.advance(pointer, std::int32_t{});  // by this many bytes
      code.advance_vector(pointer);
      code.subtract(pointer, pointer);  // first -= second
      code.jump(address);               // to the address that is stored there
      code.jump(at);
      code.count_down(pointer);  // by 1; loads, `advance` and returning do not change what `zero` is about
      code.jump_unless_zero(at);
      code.jump_if_zero(address);  // as `jump`
      code.leave_if_zero();
      code.call(at);  // of a piece that ends in `leave`
      code.leave();
      code.finish();  // returns to the caller, which is compiled

      // The instruction at an address; of those that a body consists of.
      { T::decode(at) } -> std::same_as<Instruction>;
    };

}  // namespace sift::cpu
