"""Random inputs for a model: shapes made concrete, values that no operator chokes on."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.shapes.input_binding import bind
from sift_onnx.shapes.tensor_specs import TensorSpec, shape_text

__all__ = ["Feeds", "check_feeds", "random_feeds"]

Feeds = dict[str, npt.NDArray[Any]]

# Elements of an array; numpy raises errors of its own for more than it can address.
_MOST_ELEMENTS = 1 << 48


def random_feeds(
    inputs: Sequence[TensorSpec],
    batch: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
) -> Feeds:
    """Random arrays for ``inputs``, their shapes as :func:`sift_onnx.shapes.input_binding.bind` has them.

    Floats are standard normal; integers are 0 or 1, the first along the last axis always 1 (valid token ids, and masks
    that mask no row wholly); booleans are True. The values of an input depend on its name, shape and dtype and on
    ``seed`` alone, so that two models with the same inputs get the same ones.

    Raises:
        UsageError: a shape cannot be made concrete.
        UnsupportedError: an input holds neither numbers nor booleans.
    """
    shapes = bind(inputs, input_shapes, batch).shapes
    return {spec.name: _draw(spec, shapes[spec.name], seed) for spec in inputs}


def _draw(spec: TensorSpec, shape: tuple[int, ...], seed: int) -> npt.NDArray[Any]:
    if math.prod(shape) > _MOST_ELEMENTS:
        raise UnsupportedError(f"input {spec.name!r} of shape {shape_text(shape)} is beyond the memory of any machine")
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
    kind = "strings" if kind == "object" else kind
    raise UnsupportedError(
        f"input {spec.name!r} holds {kind}, of which no random ones are made; feed the model yourself"
    )


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
        if spec.shape is None:
            continue
        fits = len(array.shape) == len(spec.shape) and all(
            size == own for size, own in zip(array.shape, spec.extents, strict=True) if isinstance(own, int)
        )
        if not fits:
            taken = shape_text(spec.shape)
            raise UsageError(
                f"input {spec.name!r} has the shape {shape_text(array.shape)}, but the model takes {taken}"
            )
