// One run of a WindowOp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/conv_geometry.h"
#include "base/op.h"
#include "ops/windows/plane_masks.h"
#include "ops/windows/strided_masks.h"
#include "ops/windows/window_scratch.h"
#include "simd/kernel_table.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

struct WindowLayer {
  WindowKind kind;
  ConvGeometry geometry;  // its groups have no meaning
  Activation activation;
  const KernelTable& kernels;
  std::shared_ptr<const SparseWeights> weights{};  // of weighted sums: a row of [kh][kw] per channel
  std::vector<float> bias{};                       // [channels], or empty
  bool count_padding = false;                      // for averages: divide by the whole window, including padding
};

// Floats from a plane to the next one, where images are in planes.
struct PlaneDistances {
  std::int64_t in;
  std::int64_t out;
};

// How windows of images in planes are read: in place with stride one or two, or else from copies.
struct PlaneMethod {
  std::shared_ptr<const PlaneMasks> masks;
  std::optional<StridedMasks> strided;
};

// Planes [first, last) of all images, or of all groups of 16.
class WindowRun {
 public:
  WindowRun(const WindowLayer& layer, const Shape& in, const Shape& out);
  // With another padding than the layer's, and planes that are parts of larger ones. Runs images in planes only.
  WindowRun(const WindowLayer& layer, const ConvGeometry& geometry, const Shape& in, const Shape& out,
            const PlaneDistances& distances);

  void run_nchw_n16(std::int64_t first, std::int64_t last, const float* in, float* out) const;
  void run_nchw(const PlaneMethod& method, std::int64_t first, std::int64_t last, const float* in, float* out) const;

 private:
  struct Range {
    std::int64_t begin;
    std::int64_t end;
    std::int64_t size() const { return end > begin ? end - begin : 0; }
    bool operator==(const Range&) const = default;
  };

  // A stretch of outputs along an axis whose windows are cut alike.
  struct Stretch {
    std::int64_t begin;
    std::int64_t end;
    Range taps;
    std::int64_t divisor;  // taps that count towards the divisor of an average
  };

  static Range taps_inside(std::int64_t out, std::int64_t kernel, std::int64_t stride, std::int64_t dilation,
                           std::int64_t pad, std::int64_t low, std::int64_t high);
  static void extend(std::vector<Stretch>& stretches, const Stretch& next);

  Range taps_y(std::int64_t y) const;
  Range taps_x(std::int64_t x) const;
  // Taps that count towards the divisor of an average, along y or x.
  std::int64_t divisor_y(std::int64_t y) const;
  std::int64_t divisor_x(std::int64_t x) const;

  WindowArgs start(std::size_t channel) const;
  float padding() const;
  // Lists place(i, j) for all taps of a window; take_taps then selects those of a channel.
  template <typename Place>
  void list_window(Place place) const {
    std::vector<std::ptrdiff_t>& window = window_scratch().window;
    window.clear();
    for (std::int64_t i = 0; i < g_.kernel_h; ++i) {
      for (std::int64_t j = 0; j < g_.kernel_w; ++j) window.push_back(place(i, j));
    }
  }
  void take_taps(std::size_t channel, WindowArgs& args) const;
  bool non_temporal() const;
  void run_masked(const PlaneMasks& masks, std::int64_t first, std::int64_t last, const float* in, float* out) const;
  void run_strided(const StridedMasks& masks, std::int64_t first, std::int64_t last, const float* in, float* out) const;
  void run_maxima(const StridedMasks& masks, std::int64_t first, std::int64_t last, const float* in, float* out) const;
  void run_copied(std::int64_t first, std::int64_t last, const float* in, float* out) const;
  void pad_or_cut_nchw_n16(std::int64_t first, std::int64_t last, const float* in, float* out) const;
  template <typename Place>
  void add_taps(std::size_t channel, Range rows, Range cols, Place place) const;
  void cut_nchw_n16(std::int64_t first, std::int64_t last, const float* in, float* out) const;
  std::int64_t square_of(const WindowArgs& args) const;
  // For a plane that was copied with its padding, to rows `pitch` apart.
  void copied_plane(WindowArgs args, const float* plane, std::int64_t pitch, float* out) const;

  const WindowLayer& layer_;
  const ConvGeometry g_;
  const Shape in_;
  const Shape out_;
  const PlaneDistances distances_;
  std::vector<Stretch> rows_;
  std::vector<Stretch> cols_;
};

}  // namespace sift::cpu
