"""The one rule that gives open axes of a model's inputs their sizes.

What is given comes first. Axes of one symbol have one size; a symbol that is a sum or a product of others
(``past_length + length``) has the size that follows. Then the batch: it is as large as the caller says, or as the first
input that has one fixes it, or 1. What is still open gets a usual size
(:mod:`sift_onnx.shapes.nominal_sizes`), or is refused.

A symbol with "batch" in its name is the batch. So is any other open first axis, unless a later axis of its input is
the batch, or its symbol also stands at a later axis while the batch is another one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sift_onnx.errors import UsageError
from sift_onnx.shapes.nominal_sizes import OpenInput, Place, nominal_sizes
from sift_onnx.shapes.open_axes import Extent
from sift_onnx.shapes.symbol_expressions import size_of_symbol
from sift_onnx.shapes.tensor_specs import TensorSpec, shape_text

__all__ = ["BoundInputs", "batch_of", "bind", "bindings"]

Shapes = dict[str, tuple[int, ...]]

# ONNX writes sizes as signed integers of 64 bits.
_LARGEST_SIZE = 2**63 - 1
# Lines about assumed sizes; a decoder has a cache for each layer.
_MOST_LINES = 3


@dataclass(frozen=True)
class BoundInputs:
    """A shape for each input.

    Attributes:
        shapes: by input name.
        assumed: axes whose sizes were not given, by input name.
        said: for each input with such axes, what to tell the user.
        values: of inputs that hold few integers, where they are known, such as the length of a sequence.
    """

    shapes: Shapes = field(default_factory=dict)
    assumed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    values: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def nominal(self) -> Shapes | None:
        """The shapes of inputs of which a size was assumed; None where none was."""
        return {name: self.shapes[name] for name in self.assumed} or None

    @property
    def remarks(self) -> tuple[str, ...] | None:
        """What to tell the user of sizes that were assumed; None where none was."""
        return self.said if self.assumed else None


def bind(
    inputs: Sequence[TensorSpec],
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
) -> BoundInputs:
    """A concrete shape for each input, the first of :func:`bindings`."""
    return next(bindings(inputs, input_shapes, batch))


def bindings(
    inputs: Sequence[TensorSpec],
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
) -> Iterator[BoundInputs]:
    """Concrete shapes for all inputs, one after the other as long as sizes have to be assumed; see the module.

    Args:
        inputs: of the model.
        input_shapes: shapes of some inputs, by name.
        batch: size of the batch; None takes what the first input that has axes fixes, or else 1.

    Raises:
        UsageError: an axis is open that nothing can be assumed of, or the arguments contradict the model or each other.
    """
    given, symbols = _given(inputs, input_shapes or {})
    wanted = batch if batch is not None else _fixed_batch(inputs, given, symbols) or 1
    batches = _batch_axes(inputs)
    for spec in inputs:
        for axis in batches[spec.name]:
            symbol = spec.extents[axis]
            if isinstance(symbol, str):
                symbols.setdefault(symbol, wanted)
    extents: dict[str, tuple[Extent, ...]] = dict(given)
    for spec in inputs:
        if spec.name not in given and spec.shape is None:
            raise UsageError(f"input {spec.name!r} has no shape; give one with {_shape_setting(spec.name, (1, '...'))}")
        if spec.name not in given:
            extents[spec.name] = tuple(
                wanted if extent is None and axis in batches[spec.name] else extent
                for axis, extent in enumerate(spec.extents)
            )
    specs = [
        OpenInput(spec.name, spec.dtype, _sized(extents[spec.name], symbols), batches[spec.name]) for spec in inputs
    ]
    for guess in nominal_sizes(specs, symbols):
        bound = _bound(specs, symbols, guess)
        if batch is not None:
            _check_batch(inputs, bound.shapes, batch)
        yield bound
        if not bound.assumed:
            return


def _bound(specs: Sequence[OpenInput], symbols: Mapping[str, int], guess: Mapping[Place, int]) -> BoundInputs:
    sizes = {**symbols, **{place: size for place, size in guess.items() if isinstance(place, str)}}
    shapes: Shapes = {}
    assumed: dict[str, tuple[int, ...]] = {}
    said: dict[Place, str] = {}
    for spec in specs:
        shape = [guess.get(spec.place(axis), extent) for axis, extent in enumerate(_sized(spec.extents, sizes))]
        shapes[spec.name] = tuple(size for size in shape if isinstance(size, int))
        if len(shapes[spec.name]) < len(shape):
            axis = next(axis for axis, size in enumerate(shape) if not isinstance(size, int))
            label = _label(spec, axis)
            raise UsageError(
                f"axis {axis} of input {spec.name!r} is dynamic ({label}); give its size with {_setting(spec)}"
            )
        if spec.open_axes:
            assumed[spec.name] = spec.open_axes
            new = [axis for axis in spec.open_axes if spec.place(axis) not in said]
            said.update((spec.place(axis), "") for axis in new)
            if new:
                said[spec.place(new[0])] = _said(spec, new, shapes[spec.name])
    lines = [line for line in said.values() if line]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"so are axes of {len(lines) - _MOST_LINES} more inputs"]
    return BoundInputs(shapes, assumed, tuple(lines))


def _said(spec: OpenInput, axes: Sequence[int], shape: Sequence[int]) -> str:
    labels = ", ".join(dict.fromkeys(_label(spec, axis) for axis in axes))
    sizes = " x ".join(str(shape[axis]) for axis in axes)
    which = f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes[:-1]))} and {axes[-1]}"
    verb = "is" if len(axes) == 1 else "are"
    return f"{which} of input {spec.name!r} {verb} open ({labels}): {sizes} is assumed; {_setting(spec)} says otherwise"


def _label(spec: OpenInput, axis: int) -> str:
    extent = spec.extents[axis]
    return repr(extent) if isinstance(extent, str) else "without a name"


def _setting(spec: OpenInput) -> str:
    return _shape_setting(spec.name, [extent if isinstance(extent, int) else "N" for extent in spec.extents])


def _shape_setting(name: str, sizes: Sequence[int | str]) -> str:
    """The setting of one input's shape; a size that the user has to choose is a letter, or three dots."""
    return f"`input_shapes={{{name!r}: ({', '.join(map(str, sizes))}{',' * (len(sizes) == 1)})}}`"


def _check_batch(inputs: Sequence[TensorSpec], shapes: Shapes, batch: int) -> None:
    found = batch_of(inputs, shapes)
    if found == batch:
        return
    first = _first_with_batch(inputs)
    if first is None:
        raise UsageError(f"batch {batch} was asked for, but the model has no input with a batch axis")
    spec, axis = first
    if isinstance(spec.extents[axis], int):
        raise UsageError(
            f"batch {batch} was asked for, but the model was exported with batch {found} (input {spec.name!r} is "
            f"{shape_text(spec.shape)}); export it with a dynamic first axis"
        )
    raise UsageError(
        f"batch {batch} was asked for, but it is {found} with the given shapes (input {spec.name!r} is "
        f"{shape_text(shapes[spec.name])})"
    )


def batch_of(inputs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]) -> int:
    """The batch in concrete ``shapes``: as large as it is in the first input that has a batch axis; 1 if none has."""
    found = _first_with_batch(inputs)
    return shapes[found[0].name][found[1]] if found is not None else 1


def _first_with_batch(inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, int] | None:
    """The first input that has a batch axis, and which one that is: an open one, or a first axis of fixed size."""
    batches = _batch_axes(inputs)
    for spec in inputs:
        if batches[spec.name]:
            return spec, batches[spec.name][0]
        if spec.extents and isinstance(spec.extents[0], int):
            return spec, 0
    return None


def _given(inputs: Sequence[TensorSpec], input_shapes: Mapping[str, Sequence[int]]) -> tuple[Shapes, dict[str, int]]:
    """The shapes that were given, held against the model, and the sizes of symbols that follow."""
    specs = {spec.name: spec for spec in inputs}
    given = {name: _sizes(name, dims) for name, dims in input_shapes.items()}
    symbols: dict[str, int] = {}
    for name, dims in given.items():
        if name not in specs:
            raise UsageError(
                f"`input_shapes` names {name!r}, but the inputs are {', '.join(map(repr, specs)) or 'none'}"
            )
        spec = specs[name]
        if spec.shape is not None and len(spec.shape) != len(dims):
            raise UsageError(f"`input_shapes` gives {name!r} {len(dims)} axes, the model has {len(spec.shape)}")
        for axis, (size, extent) in enumerate(zip(dims, spec.extents if spec.shape is not None else dims, strict=True)):
            where = f"`input_shapes` gives axis {axis} of {name!r} the size {size}"
            if size < 1 and size != extent:
                raise UsageError(f"{where}; sizes start at 1")
            if size > _LARGEST_SIZE:
                raise UsageError(f"{where}; no axis of an ONNX model is longer than {_LARGEST_SIZE}")
            if isinstance(extent, str) and symbols.setdefault(extent, size) != size:
                raise UsageError(f"{where}, but axis {extent!r} the size {symbols[extent]} elsewhere; it has one size")
            if isinstance(extent, int) and extent != size:
                raise UsageError(f"{where}, the model fixes {extent}")
    return given, symbols


def _sizes(name: str, dims: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(d) for d in dims)
    except TypeError:
        raise UsageError(f"`input_shapes` gives {name!r} {dims!r}; give a whole number for each axis") from None


def _fixed_batch(inputs: Sequence[TensorSpec], given: Shapes, symbols: Mapping[str, int]) -> int | None:
    found = _first_with_batch(inputs)
    if found is None:
        return None
    spec, axis = found
    extent = given[spec.name][axis] if spec.name in given else spec.extents[axis]
    return symbols.get(extent) if isinstance(extent, str) else extent


def _batch_axes(inputs: Sequence[TensorSpec]) -> dict[str, tuple[int, ...]]:
    """Per input, the open axes that are the batch."""
    later = {extent for spec in inputs for extent in spec.extents[1:] if isinstance(extent, str)}
    firsts = {spec.extents[0] for spec in inputs if spec.extents and not isinstance(spec.extents[0], int)}
    named = {symbol for symbol in (later | firsts) if symbol is not None and "batch" in symbol.lower()}
    clear = named or firsts - later
    found: dict[str, tuple[int, ...]] = {}
    for spec in inputs:
        axes = tuple(axis for axis, extent in enumerate(spec.extents) if extent in named)
        first = spec.extents[0] if spec.extents else 0
        if not axes and not isinstance(first, int) and not (first in later and clear):
            axes = (0,)
        found[spec.name] = axes
    return found


def _sized(extents: Sequence[Extent], symbols: Mapping[str, int]) -> tuple[Extent, ...]:
    """``extents`` with the sizes of the symbols that have one."""
    sizes = [size_of_symbol(extent, symbols) if isinstance(extent, str) else extent for extent in extents]
    return tuple(extent if size is None else size for size, extent in zip(sizes, extents, strict=True))
