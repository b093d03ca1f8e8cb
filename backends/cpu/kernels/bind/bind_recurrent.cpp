#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "products/recurrent.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

constexpr Names<RecurrentCell, 5> kCells{{{"lstm", RecurrentCell::lstm},
                                          {"gru", RecurrentCell::gru},
                                          {"gru_linear", RecurrentCell::gru_linear},
                                          {"tanh", RecurrentCell::tanh},
                                          {"relu", RecurrentCell::relu}}};

}  // namespace

void bind_recurrent(nb::module_& module) {
  nb::class_<Recurrent, Op>(module, "Recurrent", "The steps of an LSTM, GRU or RNN.")
      .def(
          "__init__",
          [](Recurrent* self, std::shared_ptr<const SparseWeights> weights, const std::optional<FloatsIn>& bias,
             const std::string& cell, const std::vector<bool>& reversed, bool has_cell_states, bool has_lengths,
             std::int64_t batch, const std::string& isa) {
            const RecurrentOptions options{.cell = named(kCells, cell, "cell"),
                                           .reversed = reversed,
                                           .has_cell_states = has_cell_states,
                                           .has_lengths = has_lengths,
                                           .batch = batch};
            const Unlocked unlocked;
            new (self) Recurrent(std::move(weights), vector_of(bias), options, kernels_of(isa));
          },
          "weights"_a, "bias"_a = nb::none(), nb::kw_only(), "cell"_a, "reversed"_a, "has_cell_states"_a = false,
          "has_lengths"_a = false, "batch"_a = 1, "isa"_a = "",
          "For inputs of shape (steps * batch, directions * gates * hidden, 1, 1), what the input adds to the gates. "
          "Weights are [directions * gates * hidden][hidden], gates in ONNX's order. `cell` is 'lstm', 'gru', "
          "'gru_linear' (linear_before_reset = 1), 'tanh' or 'relu'. `reversed` says of each direction whether it "
          "begins with the last step. The result has the states h of all directions as channels, and with "
          "`has_cell_states` as many of c behind them. Other operands: the first h and c, [directions * "
          "batch][hidden]. With `has_lengths`, the mask says how many steps each sequence has; its states h are zero "
          "from "
          "there on, and there are as many channels behind them of states that stay what they were. "
          "Batches of whole sixteens are in images16, all others in planes.")
      .def(
          "for_batch",
          [](const Recurrent& self, std::int64_t batch) {
            const Unlocked unlocked;
            return std::make_shared<Recurrent>(self, batch);
          },
          "batch"_a, "The same for another batch; they share the packed weights.");
}

}  // namespace sift::cpu
