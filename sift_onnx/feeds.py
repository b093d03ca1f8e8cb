"""Random inputs for a model: shapes made concrete, values that no operator chokes on."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.errors import UnsupportedError, UsageError

__all__ = ["Feeds", "TensorSpec", "batch_of", "check_feeds", "graph_inputs", "random_feeds", "resolve_shapes"]

Feeds = dict[str, npt.NDArray[Any]]

# Elements of an array; numpy raises errors of its own for more than it can address.
_MOST_ELEMENTS = 1 << 48


@dataclass(frozen=True)
class TensorSpec:
    """A graph input or output.

    Attributes:
        name: as the model has it.
        dtype: of the array.
        shape: one entry per axis: its size, the name of its size, or None where the model says nothing.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]


def graph_inputs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """The inputs that a caller must feed: those without a default value among the initializers.

    Raises:
        UnsupportedError: an input is no tensor (a sequence, a map, an optional).
    """
    graph = model.graph
    defaults = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return tuple(_spec(value) for value in graph.input if value.name not in defaults)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedError(f"input {value.name!r} is a {kind or 'value without a type'}: only tensors can be fed")
    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return TensorSpec(value.name, np.dtype(dtype), tuple(_size(dim) for dim in tensor.shape.dim))


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value
    return dim.dim_param or None


def resolve_shapes(
    inputs: Sequence[TensorSpec],
    batch: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, tuple[int, ...]]:
    """A concrete shape for each input.

    ``input_shapes`` comes first; then a dynamic first axis is the batch, unless its size has the name of an inner axis;
    axes whose sizes have the same name get the same size. Nothing else is guessed.

    Args:
        inputs: of the model.
        batch: size of dynamic first axes; None takes what the first input that has axes fixes, or else 1.
        input_shapes: shapes of some inputs, by name.

    Raises:
        UsageError: an axis is left dynamic, or the arguments contradict the model or each other.
    """
    given = {name: tuple(shape) for name, shape in (input_shapes or {}).items()}
    unknown = sorted(given.keys() - {spec.name for spec in inputs})
    if unknown:
        names = ", ".join(repr(spec.name) for spec in inputs)
        raise UsageError(f"--input-shapes names the input {unknown[0]!r}, but the model's inputs are {names or 'none'}")
    sizes: dict[str, int] = {}
    for spec in inputs:
        if spec.name in given:
            _bind(spec, given[spec.name], sizes)
    wanted = batch if batch is not None else _fixed_batch(inputs, given, sizes) or 1
    inner = {size for spec in inputs for size in spec.shape[1:] if isinstance(size, str)}
    for spec in inputs:
        if spec.shape and isinstance(spec.shape[0], str) and spec.shape[0] not in inner:
            sizes.setdefault(spec.shape[0], wanted)
    resolved = {spec.name: given.get(spec.name) or _resolve(spec, wanted, sizes) for spec in inputs}
    if batch is not None:
        _check_batch(inputs, resolved, batch)
    return resolved


def batch_of(inputs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]) -> int:
    """The batch in concrete ``shapes``: the first axis of the first input that has axes; 1 if none has."""
    return next((shapes[spec.name][0] for spec in inputs if spec.shape), 1)


def _fixed_batch(
    inputs: Sequence[TensorSpec], given: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]
) -> int | None:
    first = next((given.get(spec.name, spec.shape)[0] for spec in inputs if spec.shape), None)
    return sizes.get(first) if isinstance(first, str) else first


def _bind(spec: TensorSpec, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Check a given shape against the model, and note the sizes of the axes that have a name."""
    said = f"--input-shapes gives input {spec.name!r} the shape {_text(shape)}"
    if len(shape) != len(spec.shape):
        raise UsageError(f"{said}, but the model has {_text(spec.shape)}")
    for axis, (size, own) in enumerate(zip(shape, spec.shape, strict=True)):
        if size < 1:
            raise UsageError(f"{said}: sizes start at 1")
        if isinstance(own, int) and own != size:
            raise UsageError(f"{said}, but axis {axis} was exported with the fixed size {own}")
        if isinstance(own, str) and sizes.setdefault(own, size) != size:
            raise UsageError(f"{said}, but {own!r} is {sizes[own]} in another place")


def _resolve(spec: TensorSpec, batch: int, sizes: Mapping[str, int]) -> tuple[int, ...]:
    shape: list[int] = []
    for axis, size in enumerate(spec.shape):
        known = sizes.get(size) if isinstance(size, str) else size
        if size is None and axis == 0:
            known = batch
        if known is None:
            raise UsageError(
                f"input {spec.name!r}: the size of axis {axis} ({size or 'without a name'}) is dynamic; "
                f"give the whole shape with --input-shapes {spec.name}:{_text((*shape, *spec.shape[axis:]))}"
            )
        shape.append(known)
    return tuple(shape)


def _check_batch(inputs: Sequence[TensorSpec], resolved: Mapping[str, tuple[int, ...]], batch: int) -> None:
    found = batch_of(inputs, resolved)
    if found == batch:
        return
    spec = next((s for s in inputs if s.shape), None)
    if spec is None:
        raise UsageError(f"batch {batch} was asked for, but the model has no input with a batch axis")
    if isinstance(spec.shape[0], int):
        raise UsageError(
            f"batch {batch} was asked for, but the model was exported with batch {found} "
            f"(input {spec.name!r} is {_text(spec.shape)}); export it with a dynamic first axis"
        )
    raise UsageError(f"batch {batch} was asked for, but --input-shapes makes it {found} (input {spec.name!r})")


def _text(shape: Sequence[int | str | None]) -> str:
    return ",".join("?" if size is None else str(size) for size in shape) or "()"


def random_feeds(
    inputs: Sequence[TensorSpec],
    batch: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
) -> Feeds:
    """Random arrays for ``inputs``, their shapes as :func:`resolve_shapes` has them.

    Floats are standard normal; integers are 0 or 1, the first along the last axis always 1 (valid token ids, and masks
    that mask no row wholly); booleans are True. The values of an input depend on its name, shape and dtype and on
    ``seed`` alone, so that two models with the same inputs get the same ones.

    Raises:
        UsageError: a shape cannot be made concrete.
        UnsupportedError: an input holds neither numbers nor booleans.
    """
    shapes = resolve_shapes(inputs, batch, input_shapes)
    return {spec.name: _draw(spec, shapes[spec.name], seed) for spec in inputs}


def _draw(spec: TensorSpec, shape: tuple[int, ...], seed: int) -> npt.NDArray[Any]:
    if math.prod(shape) > _MOST_ELEMENTS:
        raise UnsupportedError(f"input {spec.name!r} of shape {_text(shape)} is beyond the memory of any machine")
    generator = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
    kind = spec.dtype.name
    if kind == "bool":
        return np.ones(shape, bool)
    # By name, since numpy knows no common kind for its own types and those of ml_dtypes (bfloat16, int4).
    if kind.startswith(("float", "bfloat", "complex")):
        return np.asarray(generator.standard_normal(shape, np.float32)).astype(spec.dtype)
    if kind.startswith(("int", "uint")):
        values = np.ones(shape, spec.dtype)
        if shape:
            values[..., 1:] = generator.integers(0, 2, values[..., 1:].shape)
        return values
    raise UnsupportedError(f"input {spec.name!r} holds {kind}: no random values are made for it")


def check_feeds(inputs: Sequence[TensorSpec], feeds: Mapping[str, npt.NDArray[Any]]) -> None:
    """Check names, dtypes and shapes of ``feeds`` before a program sees them.

    Raises:
        UsageError: an input is missing, unknown, or of another dtype or shape; the message names it.
    """
    names = [spec.name for spec in inputs]
    for name in feeds.keys() - set(names):
        raise UsageError(f"unknown input {name!r}; the model's inputs are {', '.join(map(repr, names)) or 'none'}")
    for spec in inputs:
        array = feeds.get(spec.name)
        if array is None:
            raise UsageError(f"input {spec.name!r} is missing")
        if array.dtype != spec.dtype:
            raise UsageError(f"input {spec.name!r} is {array.dtype}, but the model takes {spec.dtype}")
        fits = len(array.shape) == len(spec.shape) and all(
            size == own for size, own in zip(array.shape, spec.shape, strict=True) if isinstance(own, int)
        )
        if not fits:
            raise UsageError(
                f"input {spec.name!r} has the shape {_text(array.shape)}, but the model takes {_text(spec.shape)}"
            )
