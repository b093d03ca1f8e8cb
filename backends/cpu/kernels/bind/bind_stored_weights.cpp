// Weights as they are stored, see weights/stored_rows.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "bind/int8_types.h"
#include "int8/quad_weights.h"
#include "weights/packed_rows.h"
#include "weights/sparse_weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sift::cpu {
namespace {

template <typename Value>
using ListIn = ReadArray<nb::ndarray<const Value, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;
template <typename Value>
using Made = nb::ndarray<nb::numpy, Value, nb::ndim<1>, nb::c_contig>;

template <typename Value>
std::span<const Value> span_of(const ListIn<Value>& list) {
  return {list.data(), list.size()};
}

// An array with its own memory.
template <typename Value, typename Source>
Made<Value> array_of(const Source& source) {
  auto values = std::make_unique<std::vector<Value>>(source.begin(), source.end());
  const std::size_t size = values->size();
  Value* const data = values->data();
  const nb::capsule owner(values.release(), [](void* memory) noexcept {
    const std::unique_ptr<std::vector<Value>> freed(static_cast<std::vector<Value>*>(memory));
  });
  return Made<Value>(data, {size}, owner);
}

template <typename Column>
std::shared_ptr<SparseWeights> from_rows(std::int64_t rows, std::int64_t columns, const ListIn<std::uint32_t>& counts,
                                         const ListIn<Column>& entry_columns, const ListIn<float>& values) {
  const Unlocked unlocked;
  return std::make_shared<SparseWeights>(SparseWeights::from_rows<Column>(
      rows, columns, span_of<std::uint32_t>(counts), span_of<Column>(entry_columns), span_of<float>(values)));
}

template <typename Column>
QuadWeights* quads_from_rows(std::int64_t rows, std::int64_t channels, std::int64_t kernel_h, std::int64_t kernel_w,
                             std::int64_t groups, const ListIn<std::uint32_t>& counts, const ListIn<Column>& columns,
                             const ListIn<std::uint32_t>& quads) {
  const Unlocked unlocked;
  const std::vector<std::uint32_t> own(columns.data(), columns.data() + columns.size());
  return new QuadWeights(QuadWeights::from_rows(rows, channels, kernel_h, kernel_w, groups,
                                                span_of<std::uint32_t>(counts), own, span_of<std::uint32_t>(quads)));
}

constexpr const char* kFromRows =
    "From the number of entries of each row, their columns, ascending within a row, and their values, as stored() has "
    "them.";

constexpr const char* kQuadsFromRows =
    "From sizes and the number of quads of each row, their columns, ascending within a row, and their bytes, as "
    "stored() has them.";

}  // namespace

void bind_stored_weights(nb::class_<SparseWeights>& weights) {
  weights
      .def_static("from_rows", &from_rows<std::uint16_t>, "rows"_a, "columns"_a, "counts"_a, "entry_columns"_a,
                  "values"_a, kFromRows)
      .def_static("from_rows", &from_rows<std::uint32_t>, "rows"_a, "columns"_a, "counts"_a, "entry_columns"_a,
                  "values"_a, kFromRows)
      .def(
          "stored",
          [](const SparseWeights& from) {
            return std::tuple{array_of<std::uint32_t>(from.row_counts()), array_of<std::uint32_t>(from.entry_columns()),
                              array_of<float>(from.entry_values())};
          },
          "Copies of the number of entries of each row, of their columns, and of their values. Without columns where "
          "every weight is an entry.");
}

void bind_stored_rows(nb::class_<PackedRows>& rows) {
  rows.def(
      "stored",
      [](const PackedRows& from) {
        const SparseWeights numbers = from.source(false);
        return std::tuple{array_of<std::uint32_t>(numbers.row_counts()),
                          array_of<std::uint32_t>(numbers.entry_columns()), array_of<float>(numbers.entry_values()),
                          array_of<float>(from.scales()), from.group_columns()};
      },
      "Copies of the number of entries of each row, of their columns, and of their values before they are scaled; of "
      "scales; and the columns of a group.");
}

void bind_stored_quads(nb::class_<QuadWeights>& weights) {
  weights
      .def_static("from_rows", &quads_from_rows<std::uint16_t>, "rows"_a, "channels"_a, "kernel_h"_a, "kernel_w"_a,
                  "groups"_a, "counts"_a, "columns"_a, "quads"_a, nb::rv_policy::take_ownership, kQuadsFromRows)
      .def_static("from_rows", &quads_from_rows<std::uint32_t>, "rows"_a, "channels"_a, "kernel_h"_a, "kernel_w"_a,
                  "groups"_a, "counts"_a, "columns"_a, "quads"_a, nb::rv_policy::take_ownership, kQuadsFromRows)
      .def(
          "stored",
          [](const QuadWeights& from) {
            std::vector<std::uint32_t> counts;
            const std::span<const std::uint32_t> starts = from.starts();
            for (std::size_t row = 1; row < starts.size(); ++row) counts.push_back(starts[row] - starts[row - 1]);
            return std::tuple{std::tuple{from.rows(), from.channels(), from.kernel_h(), from.kernel_w(), from.groups()},
                              array_of<std::uint32_t>(counts), array_of<std::uint32_t>(from.columns()),
                              array_of<std::uint32_t>(from.quads())};
          },
          "Sizes: rows, channels, kernel_h, kernel_w, groups. Copies of the number of live quads of each row, of their "
          "columns, and of their bytes.");
}

}  // namespace sift::cpu
