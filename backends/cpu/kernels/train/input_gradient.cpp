#include "train/input_gradient.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

namespace sift::cpu {
namespace {

// Taps k = first_tap + j * tap_step for j < taps, of one axis.
struct AxisPhase {
  std::int64_t first_pixel;
  std::int64_t taps;
  std::int64_t dilation;
  std::int64_t pad_before;
};

struct Axis {
  std::int64_t tap_step;  // between two of a phase; as many phases have taps, if there are as many taps
  std::vector<AxisPhase> phases;

  Axis(std::int64_t kernel, std::int64_t stride, std::int64_t dilation, std::int64_t pad) {
    const std::int64_t common = std::gcd(stride, dilation);
    tap_step = stride / common;
    for (std::int64_t first_tap = 0; first_tap < std::min(kernel, tap_step); ++first_tap) {
      const std::int64_t corner = first_tap * dilation - pad;
      const std::int64_t pixel = (corner % stride + stride) % stride;
      const std::int64_t taps = ceil_div(kernel - first_tap, tap_step);
      const std::int64_t reach = (taps - 1) * (dilation / common);
      phases.push_back({pixel, taps, dilation / common, reach - (pixel - corner) / stride});
    }
  }

  std::size_t phase_of(std::int64_t tap) const { return static_cast<std::size_t>(tap % tap_step); }
  // Among the taps of its phase, in reverse order.
  std::int64_t place_of(std::int64_t tap) const { return phases[phase_of(tap)].taps - 1 - tap / tap_step; }
};

// Weights row after row, each row's columns ascending, that come in the order of their columns.
struct Transposed {
  std::vector<std::size_t> next;  // [rows + 1], where the next weight of each row goes
  std::vector<std::uint32_t> columns;
  std::vector<float> values;

  SparseWeights weights(std::int64_t column_count) const {
    const auto rows = static_cast<std::int64_t>(next.size()) - 1;
    SparseWeights::Builder builder(rows, column_count, static_cast<std::int64_t>(values.size()));
    std::size_t at = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (; at < next[static_cast<std::size_t>(row)]; ++at) builder.add(columns[at], values[at]);
      builder.end_row();
    }
    return builder.take();
  }
};

}  // namespace

std::vector<GradientPhase> gradient_phases(const SparseWeights& weights, const ConvGeometry& g) {
  const Axis y(g.kernel_h, g.stride_h, g.dilation_h, g.pad_top);
  const Axis x(g.kernel_w, g.stride_w, g.dilation_w, g.pad_left);
  const std::int64_t taps = g.kernel_h * g.kernel_w;
  const std::int64_t channels = weights.columns() / taps;  // of a group
  const std::int64_t group_rows = weights.rows() / g.groups;

  struct PhaseTap {
    std::size_t phase;
    std::int64_t place;  // in the phase's kernel
    std::int64_t count;  // of the phase's taps
  };
  std::vector<PhaseTap> phase_taps;
  for (std::int64_t tap = 0; tap < taps; ++tap) {
    const std::int64_t tap_y = tap / g.kernel_w;
    const std::int64_t tap_x = tap % g.kernel_w;
    const AxisPhase& phase_y = y.phases[y.phase_of(tap_y)];
    const AxisPhase& phase_x = x.phases[x.phase_of(tap_x)];
    phase_taps.push_back({y.phase_of(tap_y) * x.phases.size() + x.phase_of(tap_x),
                          y.place_of(tap_y) * phase_x.taps + x.place_of(tap_x), phase_y.taps * phase_x.taps});
  }

  // Calls take(phase tap, input channel, row of its group, value): for each phase and channel in ascending order of row
  // and place.
  const auto for_each = [&](const auto& take) {
    for (std::int64_t row = 0; row < weights.rows(); ++row) {
      const auto columns = weights.row_columns(row);
      const auto values = weights.row_values(row);
      const std::int64_t first_channel = row / group_rows * channels;
      for (std::size_t begin = 0, end = 0; begin < columns.size(); begin = end) {
        const std::int64_t channel = columns[begin] / taps;
        while (end < columns.size() && columns[end] / taps == channel) ++end;
        for (std::size_t i = end; i-- > begin;) {
          take(phase_taps[static_cast<std::size_t>(columns[i] % taps)],
               static_cast<std::size_t>(first_channel + channel), row % group_rows, values[i]);
        }
      }
    }
  };
  std::vector<Transposed> transposed(y.phases.size() * x.phases.size());
  for (Transposed& phase : transposed) phase.next.assign(static_cast<std::size_t>(channels * g.groups) + 1, 0);
  for_each([&](const PhaseTap& tap, std::size_t channel, std::int64_t, float) {
    ++transposed[tap.phase].next[channel + 1];
  });
  for (Transposed& phase : transposed) {
    std::partial_sum(phase.next.begin(), phase.next.end(), phase.next.begin());
    phase.columns.resize(phase.next.back());
    phase.values.resize(phase.next.back());
  }
  for_each([&](const PhaseTap& tap, std::size_t channel, std::int64_t row, float value) {
    Transposed& phase = transposed[tap.phase];
    const std::size_t at = phase.next[channel]++;
    phase.columns[at] = static_cast<std::uint32_t>(row * tap.count + tap.place);
    phase.values[at] = value;
  });

  std::vector<GradientPhase> result;
  for (std::size_t i = 0; i < transposed.size(); ++i) {
    if (transposed[i].values.empty()) continue;
    const AxisPhase& of_y = y.phases[i / x.phases.size()];
    const AxisPhase& of_x = x.phases[i % x.phases.size()];
    GradientPhase phase{
        {},
        {.first_y = of_y.first_pixel, .first_x = of_x.first_pixel, .step_y = g.stride_h, .step_x = g.stride_w},
        transposed[i].weights(group_rows * of_y.taps * of_x.taps)};
    phase.geometry = {.kernel_h = of_y.taps,
                      .kernel_w = of_x.taps,
                      .dilation_h = of_y.dilation,
                      .dilation_w = of_x.dilation,
                      .pad_top = of_y.pad_before,
                      .pad_left = of_x.pad_before,
                      // For stride one; with others, the grid says where outputs end.
                      .pad_bottom = (g.kernel_h - 1) * g.dilation_h - g.pad_bottom,
                      .pad_right = (g.kernel_w - 1) * g.dilation_w - g.pad_right,
                      .groups = g.groups};
    result.push_back(std::move(phase));
    transposed[i] = {};
  }
  return result;
}

}  // namespace sift::cpu
