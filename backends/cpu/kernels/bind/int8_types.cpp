#include "bind/int8_types.h"

#include <algorithm>
#include <stdexcept>

#include "base/isa.h"

namespace sift::cpu {

std::vector<std::string> int8_isas() {
  // Asked once, and never destroyed, as in kernels_of.
  static const auto& supported = *new std::vector<std::string>(isa::int8_isas_of(isa::cpu_features()));
  return supported;
}

const Int8Kernels& int8_kernels_of(const std::string& isa) {
  const std::vector<std::string> supported = int8_isas();
  // A family of instruction sets -> those of its kernels that may be had.
  const auto may_be = [&](const std::string& name) {
    if (isa.empty() || isa == "avx512") return true;
    if (isa == "avx2") return name != "avx512_vnni";
    if (isa == "neon") return name.starts_with("neon_");
    return name == isa;
  };
  const auto best = std::ranges::find_if(supported, may_be);
  const Int8Kernels* const kernels = best == supported.end() ? nullptr : find_int8_kernels(best->c_str());
  if (kernels == nullptr) throw std::invalid_argument("this machine does not run instruction set '" + isa + "'");
  return *kernels;
}

std::uint8_t byte_of(int value) {
  if (value < 0 || value > 255) throw std::invalid_argument("a zero point or bound is not in [0, 255]");
  return static_cast<std::uint8_t>(value);
}

Quantization quantization_of(const QuantizationSpec& spec) {
  return {.scale = std::get<0>(spec), .zero_point = byte_of(std::get<1>(spec))};
}

ByteRange range_of(const RangeSpec& spec) {
  const ByteRange range{.low = byte_of(std::get<0>(spec)), .high = byte_of(std::get<1>(spec))};
  if (range.low > range.high) throw std::invalid_argument("a range's low bound is above its high one");
  return range;
}

ScaledAddition addition_of(const AdditionSpec& spec) {
  const auto& [own, other, sum] = spec;
  return {quantization_of(own), quantization_of(other), quantization_of(sum)};
}

}  // namespace sift::cpu
