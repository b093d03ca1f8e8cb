#include "bind/binding_types.h"

#include "base/isa.h"

namespace sift::cpu {
namespace {

constexpr Names<ActivationKind, 12> kActivations{{{"none", ActivationKind::none},
                                                  {"clip", ActivationKind::clip},
                                                  {"leaky", ActivationKind::leaky},
                                                  {"hard_sigmoid", ActivationKind::hard_sigmoid},
                                                  {"hard_swish", ActivationKind::hard_swish},
                                                  {"sigmoid", ActivationKind::sigmoid},
                                                  {"silu", ActivationKind::silu},
                                                  {"tanh", ActivationKind::tanh},
                                                  {"gelu", ActivationKind::gelu},
                                                  {"gelu_tanh", ActivationKind::gelu_tanh},
                                                  {"elu", ActivationKind::elu},
                                                  {"mish", ActivationKind::mish}}};

}  // namespace

Activation activation_of(const ActivationSpec& spec) {
  return {named(kActivations, std::get<0>(spec), "activation"), std::get<1>(spec), std::get<2>(spec)};
}

const KernelTable& kernels_of(const std::string& isa) {
  // Asked once: in a virtual machine, CPUID takes tens of microseconds, as long as a small layer.
  // Never destroyed: a thread may be making operators while the process exits.
  static const auto& supported = *new std::vector<std::string>(isa::isas_of(isa::cpu_features()));
  const std::string& name = isa.empty() ? supported.front() : isa;
  const KernelTable* const kernels = find_kernels(name.c_str());
  bool runs = false;
  for (const std::string& known : supported) runs = runs || known == name;
  if (kernels == nullptr || !runs) {
    throw std::invalid_argument("this machine does not run instruction set '" + name + "'");
  }
  return *kernels;
}

Shape shape_of(const Shape4& sizes) {
  const Shape shape{std::get<0>(sizes), std::get<1>(sizes), std::get<2>(sizes), std::get<3>(sizes)};
  element_count(shape, Layout::nchw_n16);  // throws
  return shape;
}

ConvGeometry geometry_of(const Pair& kernel, const Pair& stride, const Pair& dilation, const Shape4& pads,
                         std::int64_t groups) {
  // Positions and offsets are computed in 64 bits, from products of two of these.
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const auto check = [](std::int64_t least, std::int64_t value) {
    if (value < least || value > kMost) {
      throw std::invalid_argument("window: kernel, stride and dilation must be positive, and no number above 2**30");
    }
  };
  for (const Pair& pair : {kernel, stride, dilation}) {
    check(1, std::get<0>(pair));
    check(1, std::get<1>(pair));
  }
  const auto [top, left, bottom, right] = pads;
  for (const std::int64_t pad : {top, left, bottom, right}) check(-kMost, pad);
  return {.kernel_h = std::get<0>(kernel),
          .kernel_w = std::get<1>(kernel),
          .stride_h = std::get<0>(stride),
          .stride_w = std::get<1>(stride),
          .dilation_h = std::get<0>(dilation),
          .dilation_w = std::get<1>(dilation),
          .pad_top = std::get<0>(pads),
          .pad_left = std::get<1>(pads),
          .pad_bottom = std::get<2>(pads),
          .pad_right = std::get<3>(pads),
          .groups = groups};
}

std::vector<float> vector_of(const std::optional<FloatsIn>& values) {
  if (!values) return {};
  return {values->data(), values->data() + values->size()};
}

}  // namespace sift::cpu
