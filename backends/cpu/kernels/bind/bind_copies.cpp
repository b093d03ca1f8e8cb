#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "ops/channel_copy.h"
#include "ops/depth_to_space.h"
#include "ops/grid_sample.h"
#include "ops/linear_resize.h"
#include "ops/pixel_copy.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using Indices = std::vector<std::int64_t>;
using BetweenSpec = std::tuple<std::int64_t, std::int64_t, float>;

std::vector<Between> places_of(const std::vector<BetweenSpec>& specs) {
  std::vector<Between> places;
  places.reserve(specs.size());
  for (const auto& [first, second, share] : specs) places.push_back({.first = first, .second = second, .share = share});
  return places;
}

}  // namespace

void bind_copies(nb::module_& module) {
  nb::class_<ChannelCopy, Op>(module, "ChannelCopy", "Channels of the input to a range of the output's.")
      .def(
          "__init__",
          [](ChannelCopy* self, Indices channels, std::int64_t first, std::int64_t total, const std::string& layout) {
            new (self) ChannelCopy(std::move(channels), first, total, named(kLayouts, layout, "layout"));
          },
          "channels"_a, "first"_a, "total"_a, nb::kw_only(), "layout"_a = "images16",
          "Channel first + i of `total` is channels[i]; the others stay as they are.");

  nb::class_<DepthToSpace, Op>(module, "DepthToSpace", "Channels to the pixels of blocks.")
      .def(
          "__init__",
          [](DepthToSpace* self, const Pair& block, bool depth_first, const std::string& layout) {
            const auto& [height, width] = block;
            new (self) DepthToSpace(height, width, depth_first, named(kLayouts, layout, "layout"));
          },
          "block"_a, nb::kw_only(), "depth_first"_a = false, "layout"_a = "images16",
          "The channels of a pixel's block follow each other, or are as far apart as there are in the output.");

  nb::class_<PixelCopy, Op>(module, "PixelCopy", "Pixels to others of the same channel.")
      .def(
          "__init__",
          [](PixelCopy* self, Indices rows, Indices columns, float fill, const std::string& layout) {
            new (self) PixelCopy(std::move(rows), std::move(columns), fill, named(kLayouts, layout, "layout"));
          },
          "rows"_a, "columns"_a, "fill"_a = 0.0F, nb::kw_only(), "layout"_a = "images16",
          "Which row and column each pixel comes from; `fill` where one of them is -1.");

  nb::class_<LinearResize, Op>(module, "LinearResize", "Linear interpolation along height and width.")
      .def(
          "__init__",
          [](LinearResize* self, const std::vector<BetweenSpec>& rows, const std::vector<BetweenSpec>& columns,
             const std::string& layout) {
            new (self) LinearResize(places_of(rows), places_of(columns), named(kLayouts, layout, "layout"));
          },
          "rows"_a, "columns"_a, nb::kw_only(), "layout"_a = "images16",
          "For each row and column (first, second, share of the second).");

  nb::class_<GridSample, Op>(module, "GridSample", "Pixels of images at computed positions.")
      .def(
          "__init__",
          [](GridSample* self, std::int64_t height, std::int64_t width, bool is_nearest, bool clamps,
             bool aligns_corners) {
            new (self) GridSample({.height = height,
                                   .width = width,
                                   .is_nearest = is_nearest,
                                   .clamps = clamps,
                                   .aligns_corners = aligns_corners});
          },
          "height"_a, "width"_a, nb::kw_only(), "is_nearest"_a = false, "clamps"_a = false, "aligns_corners"_a = false,
          "The result has `height` and `width`; the second operand, (n, height, width, 2), is x and y of each of its "
          "pixels, from -1 to 1. What lies outside is zero, or with `clamps` the pixel of the border. In planes.");
}

}  // namespace sift::cpu
