#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/array_pool.h"
#include "base/resizable_sequence.h"
#include "base/sequence.h"
#include "base/thread_pool.h"
#include "bind/binding_types.h"
#include "bind/bindings.h"
#include "bind/cache_arguments.h"

namespace sift::cpu {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

constexpr std::size_t kMostFloats = static_cast<std::size_t>(-1) / 16;

using PlaceSpec = Pair;
using MaybePlace = std::optional<PlaceSpec>;
using OtherPlaces = std::tuple<MaybePlace, MaybePlace, MaybePlace>;
using StepSpec = std::tuple<std::shared_ptr<Op>, Shape4, PlaceSpec, OtherPlaces, PlaceSpec>;
using Seconds = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Place place_of(const PlaceSpec& spec) { return {std::get<0>(spec), std::get<1>(spec)}; }
Place place_of(const MaybePlace& spec) { return spec ? place_of(*spec) : Place{}; }

Sequence* make_sequence(const std::vector<StepSpec>& specs, std::int64_t scratch_size,
                        std::vector<std::int64_t> array_sizes) {
  std::vector<SequenceStep> steps;
  steps.reserve(specs.size());
  for (const auto& [op, shape, in, others, out] : specs) {
    const auto& [n, c, h, w] = shape;
    const auto& [second, third, mask] = others;
    steps.push_back({.op = op,
                     .shape = {n, c, h, w},
                     .in = place_of(in),
                     .out = place_of(out),
                     .second = place_of(second),
                     .third = place_of(third),
                     .mask = place_of(mask)});
  }
  return new Sequence(std::move(steps), scratch_size, std::move(array_sizes));
}

using TensorSpec = std::tuple<std::int64_t, std::size_t, std::int64_t, std::size_t>;
using MaybeTensor = std::optional<std::size_t>;
using CallSpec = std::tuple<std::shared_ptr<Op>, Shape4, std::size_t, MaybeTensor, MaybeTensor, std::size_t, bool>;

ResizableSequence* make_resizable(const std::vector<TensorSpec>& tensors, const std::vector<CallSpec>& calls,
                                  const std::vector<std::pair<std::size_t, Shape4>>& inputs) {
  std::vector<ResizableSequence::Tensor> places;
  for (const auto& [array, root, start, owner] : tensors) places.push_back({array, root, start, owner});
  std::vector<ResizableSequence::Call> steps;
  for (const auto& [op, shape, in, second, third, out, is_left_out] : calls) {
    steps.push_back({op, shape_of(shape), in, second, third, out, is_left_out});
  }
  std::vector<std::pair<std::size_t, Shape>> shapes;
  for (const auto& [tensor, shape] : inputs) shapes.emplace_back(tensor, shape_of(shape));
  return new ResizableSequence(std::move(places), std::move(steps), std::move(shapes));
}

std::optional<std::pair<std::shared_ptr<Sequence>, std::vector<Shape4>>> resized_images(
    const ResizableSequence& sequence, const std::vector<Shape4>& inputs,
    const std::vector<std::pair<std::size_t, std::shared_ptr<Op>>>& replaced, std::vector<std::int64_t> array_sizes) {
  std::vector<Shape> shapes;
  shapes.reserve(inputs.size());
  for (const Shape4& shape : inputs) shapes.push_back(shape_of(shape));
  const std::vector<std::pair<std::size_t, std::shared_ptr<const Op>>> ops(replaced.begin(), replaced.end());
  auto found = sequence.resized(shapes, ops, std::move(array_sizes));
  if (!found) return std::nullopt;
  std::vector<Shape4> read;
  read.reserve(found->shapes.size());
  for (const Shape& shape : found->shapes) read.push_back(tuple_of(shape));
  return std::pair{std::make_shared<Sequence>(std::move(found->sequence)), std::move(read)};
}

// Words of an array of other elements than floats, which are passed as if they were floats; none if it is of another
// type.
template <typename Element>
std::optional<std::pair<float*, std::int64_t>> words_of(nb::handle item) {
  nb::ndarray<Element, nb::c_contig, nb::device::cpu> array;
  if (!nb::try_cast(item, array, false)) return std::nullopt;
  const auto words = static_cast<std::int64_t>((array.size() * sizeof(Element) + sizeof(float) - 1) / sizeof(float));
  return std::pair{reinterpret_cast<float*>(const_cast<std::remove_const_t<Element>*>(array.data())), words};
}

template <typename Array>
std::optional<std::pair<float*, std::int64_t>> words_of_others(nb::handle item) {
  constexpr bool kWritable = std::is_same_v<Array, FloatsOut>;
  using Unsigned = std::conditional_t<kWritable, std::uint8_t, const std::uint8_t>;
  using Signed = std::conditional_t<kWritable, std::int8_t, const std::int8_t>;
  using Integer = std::conditional_t<kWritable, std::int64_t, const std::int64_t>;
  if (const auto words = words_of<Unsigned>(item)) return words;
  if (const auto words = words_of<Signed>(item)) return words;
  return words_of<Integer>(item);
}

// The caller's array: the very one, since copies would be lost, or of no use to the next run.
template <typename Array>
float* array_of(nb::handle item, std::size_t number, std::int64_t size, const char* requirement) {
  const auto refuse = [number](const std::string& what) {
    throw std::invalid_argument("sequence: array " + std::to_string(number) + " " + what);
  };
  Array array;
  if (!nb::try_cast(item, array, false)) {
    const auto words = words_of_others<Array>(item);
    if (words && words->second == size) return words->first;
    refuse(words ? "has " + std::to_string(words->second) + " words of four bytes, not " + std::to_string(size)
                 : requirement);
  }
  if (!is_aligned(array)) refuse(requirement);
  if (static_cast<std::int64_t>(array.size()) != size) {
    refuse("has " + std::to_string(array.size()) + " values, not " + std::to_string(size));
  }
  // Of arrays of inputs, which may be read-only, no operator's output is a part.
  return const_cast<float*>(array.data());
}

using Arrays = nb::typed<nb::sequence, FloatsIn>;

std::vector<float*> pointers_to(const Sequence& sequence, const Arrays& arrays) {
  const auto sizes = sequence.array_sizes();
  if (nb::len(arrays) != sizes.size()) throw std::invalid_argument("sequence: one array per size");
  std::vector<float*> pointers;
  pointers.reserve(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const nb::object item = arrays[i];
    if (sequence.writes(i)) {
      const char* const requirement = "must be a writable, aligned, C-contiguous array of float32";
      pointers.push_back(array_of<FloatsOut>(item, i, sizes[i], requirement));
    } else {
      pointers.push_back(array_of<FloatsIn>(item, i, sizes[i], "must be an aligned, C-contiguous array of float32"));
    }
  }
  return pointers;
}

void run_sequence(const Sequence& sequence, ThreadPool& pool, Workspace& workspace, const Arrays& arrays,
                  const std::optional<Seconds>& seconds, const std::vector<CacheSpec>& caches) {
  const std::vector<float*> pointers = pointers_to(sequence, arrays);
  if (seconds && seconds->size() != sequence.steps().size()) {
    throw std::invalid_argument("sequence: one time per step");
  }
  const std::span<double> times = seconds ? std::span<double>{seconds->data(), seconds->size()} : std::span<double>{};
  std::vector<KeyValueCache> found;
  found.reserve(caches.size());
  for (const CacheSpec& spec : caches) found.push_back(cache_of(spec));
  const Unlocked unlocked;
  sequence.run(pool, workspace, pointers, times, found);
}

void run_each(const Sequence& sequence, ThreadPool& pool, Workspace& workspace, const std::vector<Arrays>& arrays) {
  std::vector<std::vector<float*>> pointers;
  pointers.reserve(arrays.size());
  for (const Arrays& each : arrays) pointers.push_back(pointers_to(sequence, each));
  const Unlocked unlocked;
  sequence.run_each(pool, workspace, pointers);
}

using FloatArray = nb::ndarray<nb::numpy, float, nb::device::cpu>;

// Gives the memory back to the pool when the last array that looks at it is gone.
struct Lent {
  std::shared_ptr<ArrayPool> pool;
  ArrayPool::Block block;
  ~Lent() { pool->give_back(block); }
};

FloatArray empty_array(const std::shared_ptr<ArrayPool>& pool, const std::vector<std::size_t>& sizes) {
  std::size_t count = 1;
  for (const std::size_t size : sizes) {
    if (__builtin_mul_overflow(count, size, &count) || count > kMostFloats) throw std::bad_alloc();
  }
  auto lent = std::make_unique<Lent>(pool, pool->take(count));
  float* const data = lent->block.begin;
  const nb::capsule owner(lent.get(), [](void* own) noexcept { delete static_cast<Lent*>(own); });
  lent.release();
  return FloatArray(data, sizes.size(), sizes.data(), owner);
}

}  // namespace

void bind_sequence(nb::module_& module) {
  nb::class_<ArrayPool>(module, "ArrayPool", "Arrays whose memory is used again when they are gone.")
      .def(nb::init<>())
      .def("empty", &empty_array, "sizes"_a, nb::rv_policy::reference, "A new array of float32, of any values.")
      .def_prop_ro("idle", &ArrayPool::idle, "Floats that no array uses.")
      .def("release_idle", &ArrayPool::release_idle, nb::call_guard<Unlocked>(),
           "Give memory behind the last array that is in use back to the system.");

  nb::class_<Workspace>(module, "Workspace", "Scratch memory that sequences borrow while they run.")
      .def(nb::init<>())
      .def("release_idle", &Workspace::release_idle, nb::call_guard<Unlocked>(), "Free what no sequence has borrowed.");

  nb::class_<CacheRoom>(module, "CacheRoom", "Keys and values that have room for more tokens than there are.")
      .def(nb::init<CacheOut, CacheOut>(), nb::arg("keys").noconvert(), nb::arg("values").noconvert(),
           "Arrays of (sequences, heads, tokens, depth), which runs read and write from the first token on.");

  nb::class_<Sequence>(module, "Sequence", "Operators one after the other, with their buffers.")
      .def(nb::new_(&make_sequence), "steps"_a, "scratch_size"_a, "array_sizes"_a,
           "A step is (op, shape of its input, input, (second operand, third operand, mask), output). Operands are "
           "places, (index of an array or -1 for scratch memory, offset in floats); None for those that are not there.")
      .def(
          "run", &run_sequence, "pool"_a, "workspace"_a, "arrays"_a, nb::arg("seconds").noconvert() = nb::none(),
          nb::arg("caches").noconvert() = nb::list(),
          "Run on `arrays`, outputs among them; the time of each step is added to `seconds`. Arrays are of float32, or "
          "of uint8, int8 or int64, whose sizes are counted in words of four bytes, rounded up. Each step that takes a "
          "cache has one of `caches`: keys and values of the past, those after the run, of (sequences, heads, tokens, "
          "depth), which may lie where the past ones do, and are None where the cache is only read; the tokens of each "
          "sequence's past where they differ, those that count, and a mask of (sequences, heads, new tokens, tokens), "
          "or None. For a CacheRoom the tokens of the past and after the run take the place of the arrays. "
          "Thread-safe.")
      .def("run_each", &run_each, "pool"_a, "workspace"_a, "arrays"_a,
           "Run once for each element of `arrays`, which is as that of `run`: each on one thread of the pool.")
      .def(
          "resized",
          [](const Sequence& sequence, std::int64_t rows,
             const std::vector<std::pair<std::size_t, std::shared_ptr<Op>>>& replaced,
             std::vector<std::int64_t> array_sizes) {
            const std::vector<std::pair<std::size_t, std::shared_ptr<const Op>>> ops(replaced.begin(), replaced.end());
            return new Sequence(sequence.resized(rows, ops, std::move(array_sizes)));
          },
          "rows"_a, "replaced"_a, "array_sizes"_a, nb::rv_policy::take_ownership,
          "The same for another number of rows, where all tensors are matrices of one: in images16, or whole arrays. "
          "Operators that depend on the number are replaced, as (step, operator).")
      .def_static(
          "chained",
          [](const std::vector<std::pair<std::shared_ptr<Sequence>, std::vector<PlaceSpec>>>& specs,
             std::int64_t passed, std::vector<std::int64_t> array_sizes) {
            std::vector<Sequence::Part> parts;
            parts.reserve(specs.size());
            for (const auto& [sequence, places] : specs) {
              Sequence::Part& part = parts.emplace_back(sequence);
              for (const PlaceSpec& place : places) part.arrays.push_back(place_of(place));
            }
            return new Sequence(Sequence::chained(parts, passed, std::move(array_sizes)));
          },
          "parts"_a, "passed"_a, "array_sizes"_a, nb::rv_policy::take_ownership,
          "Sequences one after the other as one. A part is (sequence, places of its arrays); in scratch memory, the "
          "first `passed` floats are for arrays that parts pass on to others.")
      .def_prop_ro("scratch_size", &Sequence::scratch_size, "Floats of scratch memory.");

  nb::class_<ResizableSequence>(module, "ResizableSequence",
                                "A sequence of operators on images, for images of any size.")
      .def(nb::new_(&make_resizable), "tensors"_a, "calls"_a, "inputs"_a,
           "A tensor is (index of an array or -1 for scratch memory, the tensor that it lies in or itself, its first "
           "channel there, the tensor whose memory it has or itself). A call is (op, shape of its input, input, second "
           "operand or None, third operand or None, output, whether it is left out), with indices of tensors. Inputs "
           "are (tensor, shape).")
      .def("resized", &resized_images, "shapes"_a, "replaced"_a, "array_sizes"_a,
           "The sequence for inputs of other shapes, and the shape of each step's input; None where these might take "
           "another one. Operators that depend on a size are replaced, as (call, operator).");
}

}  // namespace sift::cpu
